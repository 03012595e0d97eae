#!/usr/bin/env python3
"""Log in with Python: login.py NAME PASSWORD ADDRESS

THROTTLER_URL is the URL of throttler serve, THROTTLER_API_KEY a key of it.
"""
import hmac
import json
import os
import sys
import urllib.error
import urllib.request

API = os.environ.get("THROTTLER_URL", "http://127.0.0.1:4183")


def is_cross_site(environ):
    """Return whether a browser sent this from a page of another site.

    environ has CGI's names, as WSGI's does. Refuse such a request before it
    counts: the visitor does not know of it, and it would lock them out.
    """
    site = environ.get("HTTP_SEC_FETCH_SITE")
    if site:
        return site not in ("same-origin", "none")
    origin = environ.get("HTTP_ORIGIN")  # of browsers before 2023
    return bool(origin) and origin.partition("://")[2] != environ.get("HTTP_HOST")


def ask(path, **question):
    """Return the answer to a question, or None if there is none in time."""
    request = urllib.request.Request(
        API + path,
        json.dumps(question).encode(),
        {
            "Authorization": "Bearer " + os.environ["THROTTLER_API_KEY"],
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=2) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:  # its body says why
        print("throttler:", error, error.read().decode(), file=sys.stderr)
    except (OSError, ValueError) as error:
        print("throttler:", error, file=sys.stderr)
    return None


def password_is_right(name, password):
    """Stands for your own accounts, with hashed passwords."""
    typed = (name + ":" + password).encode("utf-8", "surrogateescape")
    return hmac.compare_digest(typed, b"alice:correct horse")


def log_in(environ, name, password, address):
    if is_cross_site(environ):
        return "Please use our own form."
    attempt = ask("/v1/login/begin", name=name, address=address)
    if attempt is None:  # fails closed
        return "Please try again later."
    if attempt["status"] != "authorized":  # do not look at the password
        return "%s (%.0f s)" % (attempt["message"], attempt["retry_after"])
    if not password_is_right(name, password):
        ask("/v1/login/fail", attempt=attempt["attempt"])
        return "Wrong name or password."
    ask("/v1/login/succeed", attempt=attempt["attempt"])
    return "Welcome!"


print(log_in(os.environ, *sys.argv[1:4]))
