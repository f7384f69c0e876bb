"""Sign Flower apps, and serve them to a SuperLink on this machine.

``sign_app.py sign KEY APP.fab`` writes ``APP.json`` with a signature. ``sign_app.py serve FOLDER``
replaces Flower Hub at http://127.0.0.1:8002 for the apps in that folder. A file has the name of its
app and version: ``fed-cg-0.1.0.fab``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import time
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_ssh_private_key

_HOST, _PORT = "127.0.0.1", 8002


def sign(key: Path, app: Path) -> None:
    """Sign an app with an Ed25519 key of ssh-keygen, as Flower's nodes check it."""
    now = int(time.time())
    message = now.to_bytes(8, "big") + hashlib.sha256(app.read_bytes()).digest()
    signature = load_ssh_private_key(key.read_bytes(), None).sign(message)
    text = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    found = [{"public_key_id": f"fpk_{key.name}", "signature": text, "signed_at": now}]
    app.with_suffix(".json").write_text(json.dumps(found))


class Hub(SimpleHTTPRequestHandler):
    """Reply with the address of an app and its signatures; serve the file."""

    def do_POST(self) -> None:
        """Answer ``/v1/hub/fetch-fab``."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = f"{asked['app_id'].partition('/')[2]}-{asked['app_version']}"
        signed = Path(self.directory, f"{Path(name).name}.json")
        if not signed.is_file():
            self.send_error(404)
            return
        where = f"http://{_HOST}:{_PORT}/{signed.stem}.fab"
        body = json.dumps({"fab_url": where, "verifications": json.loads(signed.read_text())})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())


if __name__ == "__main__":
    if sys.argv[1] == "sign":
        sign(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        HTTPServer((_HOST, _PORT), partial(Hub, directory=sys.argv[2])).serve_forever()
