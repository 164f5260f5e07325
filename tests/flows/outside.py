"""A receiver of webhooks in a process of its own: `python -m tests.flows.outside FILE`. It prints its port, and writes
a line into the file for each request before it answers: the key and the body."""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        line = json.dumps([self.headers["x-idempotency-key"], body])
        with Path(sys.argv[1]).open("a") as file:
            file.write(f"{line}\n")
        time.sleep(0.05)  # the worker may die meanwhile
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
