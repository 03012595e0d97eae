<?php
// Answers with the values that PHP reads for a field, each in base64 on a line: from the body, the
// query and cookies, and from JSON of any type.
$steps = explode(' ', $_SERVER['HTTP_X_STEPS']);
$read = function ($value) use ($steps) {
    foreach ($steps as $step) {
        $value = is_array($value) ? ($value[$step] ?? null) : null;
    }
    return $value;
};
$flat = function ($value) use (&$flat) {
    return is_array($value) ? array_merge([], ...array_map($flat, array_values($value))) : ($value === null ? [] : [$value]);
};
$all = array_map($read, [$_POST, $_GET, $_COOKIE, $_FILES, json_decode(file_get_contents('php://input'), true)]);
echo implode("\n", array_map('base64_encode', $flat($all)));
