<?php
// Answers with the values that PHP reads for a field, each in base64 on a line.
$steps = explode(' ', $_SERVER['HTTP_X_STEPS']);
$value = $_POST;
foreach ($steps as $step) {
    $value = is_array($value) ? ($value[$step] ?? null) : null;
}
$flat = function ($value) use (&$flat) {
    return is_array($value) ? array_merge([], ...array_map($flat, array_values($value))) : ($value === null ? [] : [$value]);
};
echo implode("\n", array_map('base64_encode', $flat($value)));
