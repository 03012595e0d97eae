<?php
// Log in with PHP: login.php NAME PASSWORD ADDRESS
//
// THROTTLER_URL is the URL of throttler serve, THROTTLER_API_KEY a key of it.
declare(strict_types=1);

// is_cross_site returns whether a browser sent this from a page of another site.
// $server is $_SERVER of a page. Refuse such a request before it counts: the visitor
// does not know of it, and it would lock them out.
function is_cross_site(array $server): bool
{
    if (($server['HTTP_SEC_FETCH_SITE'] ?? '') !== '') {
        return !in_array($server['HTTP_SEC_FETCH_SITE'], ['same-origin', 'none'], true);
    }
    $origin = $server['HTTP_ORIGIN'] ?? ''; // of browsers before 2023
    return $origin !== '' && preg_replace('~^[^:]*://~', '', $origin) !== ($server['HTTP_HOST'] ?? '');
}

// ask returns the answer to a question, or null if there is none in time.
function ask(string $path, array $question): ?array
{
    $context = stream_context_create(['http' => [
        'method' => 'POST',
        'header' => ['Authorization: Bearer ' . getenv('THROTTLER_API_KEY'), 'Content-Type: application/json'],
        'content' => json_encode($question, JSON_THROW_ON_ERROR | JSON_INVALID_UTF8_SUBSTITUTE),
        'timeout' => 2,
        'ignore_errors' => true, // the body of an error says why
    ]]);
    $body = @file_get_contents((getenv('THROTTLER_URL') ?: 'http://127.0.0.1:4183') . $path, false, $context);
    $answer = json_decode((string) $body, true);
    if (!isset($answer['status'])) {
        error_log('throttler: ' . ($body ?: error_get_last()['message'] ?? 'no answer'));
        return null;
    }
    return $answer;
}

// password_is_right stands for your own accounts, with hashed passwords.
function password_is_right(string $name, string $password): bool
{
    return hash_equals('alice:correct horse', "$name:$password");
}

function log_in(array $server, string $name, string $password, string $address): string
{
    if (is_cross_site($server)) {
        return 'Please use our own form.';
    }
    $attempt = ask('/v1/login/begin', ['name' => $name, 'address' => $address]);
    if ($attempt === null) { // fails closed
        return 'Please try again later.';
    }
    if ($attempt['status'] !== 'authorized') { // do not look at the password
        return sprintf('%s (%.0f s)', $attempt['message'], $attempt['retry_after']);
    }
    if (!password_is_right($name, $password)) {
        ask('/v1/login/fail', ['attempt' => $attempt['attempt']]);
        return 'Wrong name or password.';
    }
    ask('/v1/login/succeed', ['attempt' => $attempt['attempt']]);
    return 'Welcome!';
}

echo log_in(getenv(), $argv[1], $argv[2], $argv[3]), "\n";
