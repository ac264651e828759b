#!/usr/bin/env python3
"""tq eval and an endpoint over HTTPS whose certificate nobody knows.

usage: https_endpoint.py --tq PATH

A server on this machine has a certificate that openssl signs here. Without it the command fails,
with exit code 3 and the way to mend it; with SSL_CERT_FILE or SSL_CERT_DIR it is trusted. Exit 77
where there is no openssl.
"""
import argparse
import http.server
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading

parser = argparse.ArgumentParser()
parser.add_argument("--tq", required=True)
options = parser.parse_args()
failed = False


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"choices": [{"text": "x", "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        pass  # clients that refuse the certificate hang up


def check(what, run, code, words=""):
    global failed
    holds = run.returncode == code and words in run.stderr
    failed |= not holds
    print(("ok: " if holds else "WRONG: ") + what)
    if not holds:
        print(f"  exit code {run.returncode}, not {code} with {words!r}\n{run.stderr}")


def main(folder):
    certificate, key = folder / "own.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                    "-keyout", key, "-out", certificate], check=True, capture_output=True)
    hashed = folder / "hashed"
    hashed.mkdir()
    name = subprocess.run(["openssl", "x509", "-hash", "-noout", "-in", certificate], check=True,
                          capture_output=True, text=True).stdout.strip()
    shutil.copy(certificate, hashed / f"{name}.0")
    log = folder / "log.jsonl"
    log.write_text('{"prompt": "a"}\n')

    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]

    def replay(host="localhost", **variables):
        own = {k: v for k, v in os.environ.items()
               if not k.startswith("SSL_CERT_") and not k.lower().endswith("_proxy")}
        url = f"https://{host}:{port}/v1"
        return subprocess.run(
            [options.tq, "eval", "replay", "--data", str(log), "--baseline", url, "--candidate",
             url, "--baseline-model", "m", "--candidate-model", "m", "--retries", "0", "--quiet"],
            env=own | variables, capture_output=True, text=True, timeout=60)

    unknown = "SSL_CERT_FILE must name a PEM file with the authority that signed it "
    check("an unknown certificate is refused", replay(), 3, unknown + "(SSL_CERT_FILE is not set)")
    check("SSL_CERT_FILE is honoured", replay(SSL_CERT_FILE=str(certificate)), 0)
    check("SSL_CERT_DIR is honoured", replay(SSL_CERT_DIR=str(hashed)), 0)
    check("another host than the certificate's is refused",
          replay("127.0.0.1", SSL_CERT_FILE=str(certificate)), 3, "must name the host of the URL")
    missing = str(folder / "missing.pem")
    check("a file that is missing is named", replay(SSL_CERT_FILE=missing), 3,
          f"SSL_CERT_FILE is '{missing}'")
    server.shutdown()


if shutil.which("openssl") is None:
    sys.exit(77)
with tempfile.TemporaryDirectory() as temporary:
    main(pathlib.Path(temporary))
sys.exit(1 if failed else 0)
