"""An identity provider whose keys are a file; `openssl` makes them and signs."""
import base64
import json
import subprocess
import time
from pathlib import Path
from typing import Any

AUDIENCE = "penstock-e2e"


def _part(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _openssl(*arguments: str) -> bytes:
    return subprocess.run(["openssl", *arguments], check=True, capture_output=True).stdout


class Issuer:
    """Signs tokens with one Ed25519 key."""

    def __init__(self, name: str, work: Path) -> None:
        self.name = name
        self.issuer = f"https://{name}.example"
        self._work = work
        self._key = work / f"{name}.pem"
        self._key.write_bytes(_openssl("genpkey", "-algorithm", "ed25519"))
        public = _openssl("pkey", "-in", str(self._key), "-pubout", "-outform", "DER")[-32:]
        # Both issuers call their key the same.
        jwk = {"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": _part(public)}
        self.file = work / f"{name}.jwks.json"
        self.file.write_text(json.dumps({"keys": [jwk]}))

    def config(self) -> dict[str, Any]:
        """An item of `auth.jwt`."""
        return {
            "issuer": self.issuer, "jwks": str(self.file), "audience": AUDIENCE,
            "claims": {"models": "models"}, "leeway": "0s",
        }

    def token(self, **claims: Any) -> str:
        """A token that is valid for a minute, unless its claims say otherwise."""
        valid = {
            "iss": self.issuer, "sub": "alice", "aud": AUDIENCE, "exp": int(time.time()) + 60,
            "models": ["tiny/*"], **claims,
        }
        head = {"alg": "EdDSA", "kid": "1"}
        message = f"{_part(json.dumps(head).encode())}.{_part(json.dumps(valid).encode())}"
        file = self._work / f"{self.name}.message"
        file.write_text(message)
        key = ["-inkey", str(self._key), "-rawin", "-in", str(file)]
        return f"{message}.{_part(_openssl('pkeyutl', '-sign', *key))}"
