"""Reads requests, a line of JSON each, and answers with the values that Python reads for a field."""
import base64, email.parser, email.policy, io, json, sys, urllib.parse, warnings

warnings.simplefilter("ignore")
try:
    import cgi
except ImportError:  # since Python 3.13
    cgi = None


def fields(text, field):
    return [v for k, v in urllib.parse.parse_qsl(text, keep_blank_values=True) if k == field]


def parts(kind, body, field):
    head = b"Content-Type: " + kind.encode() + b"\r\n\r\n"
    for part in email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body).walk():
        if not part.is_multipart() and part.get_param("name", header="content-disposition") == field:
            yield part.get_payload(decode=True).decode("utf-8", "replace")
    if cgi:
        headers = {"content-type": kind, "content-length": str(len(body))}
        form = cgi.FieldStorage(io.BytesIO(body), headers, environ={"REQUEST_METHOD": "POST"}, keep_blank_values=True)
        for part in form.list or []:
            if part.name == field:
                yield part.value if isinstance(part.value, str) else part.value.decode("utf-8", "replace")


for line in sys.stdin:
    asked = json.loads(line)
    kind, field, body = asked["kind"], asked["field"], base64.b64decode(asked["body"])
    values = fields(asked["query"], field)
    try:
        if kind.startswith("multipart/"):
            values += parts(kind, body, field)
        elif kind.startswith("application/x-www-form-urlencoded"):
            values += fields(body.decode("utf-8", "replace"), field)
        read = json.loads(body)
        if isinstance(read, dict) and isinstance(read.get(field), str):
            values.append(read[field])
    except (ValueError, TypeError, RecursionError):
        pass  # it refuses the body, or the body is no JSON
    print(json.dumps(values), flush=True)
