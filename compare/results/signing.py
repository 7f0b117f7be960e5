"""Signatures of results, in ssh-keygen's format: a key is checked, a manifest is signed, a folder is compared with it.

The manifest has the SHA-256 of the plan and of every result. No path in it is ever opened: its lines are compared with those of
the files that were read.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

from common.artifacts import atomic_files, records
from common.frozen import Exact
from common.machine import plain_file
from common.machine.plain_file import PlainFileError
from common.machine.private_folder import PrivateFolder
from common.spec import SpecError
from compare.cli import wording
from compare.cli.errors import FolderError

MANIFEST_FILE = "signed.txt"
SIGNATURE_FILE = f"{MANIFEST_FILE}.sig"

_NAMESPACE = "convtwins"
"""Namespace of the signatures. A signature for another purpose, such as git's, does not count."""
_MOST_BYTES = {MANIFEST_FILE: 2**25, SIGNATURE_FILE: 2**16}
_SECONDS = 60.0
"""Timeout of one call of ssh-keygen. A key in hardware waits for a touch."""
_LONGEST_ANSWER = 240
_GOOD_SIGNATURE = re.compile(r'Good "convtwins" signature with (\S+ key SHA256:[A-Za-z0-9+/]+)')


class Signature(Exact):
    """The signature of a results folder, and whether it is confirmed."""

    confirmed: bool
    """Whether `key` signed the plan and exactly the results that are there. With `--signers`: and belongs to one of them."""
    sentence: str
    key: str | None = None
    """Kind and fingerprint of the key. None: there is no signature, or it is not of this manifest."""
    signer: str | None = None
    """Owner of the key, by the file of `report --signers`."""
    differences: dict[str, list[str]] = {}
    """{kind of difference: files that differ so}."""


class _SigningError(ValueError):
    """ssh-keygen failed, or the files are no signature that it could verify."""


def check_key(key: Path | None) -> None:
    """Check that a key can sign, by signing a text. None: nothing is to be signed."""
    if key is None:
        return
    try:
        _sign_bytes(b"Can this key sign?\n", key)
    except _SigningError as error:
        raise SpecError(
            f"--sign must name an SSH key that can sign. Received: {key} ({error}). Name a private key without a passphrase, "
            "or hand the key to an agent with ssh-add."
        ) from None


def manifest(digests: Mapping[str, str]) -> str:
    """Return the lines that sha256sum prints of these files, in the order of their paths."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items()))


def sign(folder: Path, digests: Mapping[str, str], key: Path, again: str | None = None) -> str | None:
    """Write the manifest of a folder and its signature, in place of earlier ones.

    Args:
        digests: SHA-256 of the plan and each result, by its path in the folder.
        again: the command that signs them with `--sign KEY`. None: `run --resume` of the folder.

    Returns:
        Why signing failed. None: it succeeded.
    """
    content = manifest(digests).encode()
    try:
        signature = _sign_bytes(content, key)
        atomic_files.write_atomically(folder / MANIFEST_FILE, content)
        atomic_files.write_atomically(folder / SIGNATURE_FILE, signature)
    except (_SigningError, OSError) as error:
        again = again or wording.command("run", "--resume", str(folder))
        return f"The results are not signed with {key} ({error}). Sign them with {again} --sign {key}."
    return None


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a record.

    Raises:
        OSError: it cannot be read, is no plain file, or is too large for a record.
    """
    return hashlib.sha256(plain_file.read(path, records.MOST_BYTES)).hexdigest()


def file_digests(folder: Path, paths: Collection[str]) -> dict[str, str]:
    """Compute {path: SHA-256} of the files of a folder that exist."""
    return {path: sha256(folder / path) for path in paths if (folder / path).is_file()}


def sign_and_verify(folder: Path, paths: Collection[str], key: Path | None, again: str) -> tuple[Signature | None, str | None]:
    """Sign a command's records, if there is a key, and verify the signature that the folder has then.

    Args:
        paths: paths of the records in the folder, whether or not they exist.
        again: see `sign`.

    Returns:
        (the signature, if there is one; why signing failed, if it did).
    """
    digests = file_digests(folder, paths)
    unsigned = None if key is None else sign(folder, digests, key, again)
    return verify(folder, digests, paths, None), unsigned


def verify(folder: Path, digests: Mapping[str, str], planned: Collection[str], signers: Path | None) -> Signature | None:
    """Compare a folder with its signature.

    Args:
        digests: SHA-256 of the plan and of each result that counts, by its path in the folder.
        planned: paths of the plan and of all its results, whether or not they exist.
        signers: a file in the form of ssh's allowed_signers. The signature must be of a key in it.

    Returns:
        The signature. None: the folder has none, and `signers` is None.
    """
    if signers is not None:
        try:
            signers.open("rb").close()
        except OSError as error:
            raise FolderError(f"--signers must name a file of allowed signers. Received: {signers} ({error}).") from None
    if not any(os.path.lexists(folder / name) for name in _MOST_BYTES):
        return _unconfirmed("the results have none, and --signers asks for one") if signers is not None else None
    key = signer = None
    try:
        with PrivateFolder() as temporary:
            content, signature = (_read_file(folder / name) for name in _MOST_BYTES)
            signature_file = temporary.path / SIGNATURE_FILE
            signature_file.write_bytes(signature)
            key = _signing_key(content, signature_file)
            signer = _find_signer(content, signature_file, signers) if signers is not None else None
        differences = _differences(_parse_manifest(content), digests, planned)
    except _SigningError as error:
        return _unconfirmed(str(error), key, signer)
    if differences:
        details = "; ".join(f"{kind}: {wording.listed(map(wording.visible, paths))}" for kind, paths in differences.items())
        return _unconfirmed(f"it was made over other files. {details}", key, signer, differences)
    results = len(digests) - 1
    are = "1 result is" if results == 1 else f"{results:,} results are"
    sentence = f"Signed by {_owner(key, signer)}: {are} as {'it was' if results == 1 else 'they were'} signed."
    return Signature(confirmed=True, sentence=sentence, key=key, signer=signer)


def _unconfirmed(
    why: str, key: str | None = None, signer: str | None = None, differences: Mapping[str, list[str]] | None = None
) -> Signature:
    owner_text = f" of {_owner(key, signer)}" if key else ""
    sentence = f"SIGNATURE NOT CONFIRMED{owner_text}: {why}."
    return Signature(confirmed=False, sentence=sentence, key=key, signer=signer, differences=dict(differences or {}))


def _owner(key: str, signer: str | None) -> str:
    return f"{wording.visible(signer)} ({key})" if signer else key


def _read_file(path: Path) -> bytes:
    """Read a file of the signature. A link or a device is not opened."""
    try:
        return plain_file.read(path, _MOST_BYTES[path.name], follow=False)
    except FileNotFoundError:
        raise _SigningError(f"{path.name} is missing") from None
    except PlainFileError as error:
        raise _SigningError(f"{path.name} {error.fault}") from None
    except OSError as error:
        raise _SigningError(f"{path.name} cannot be read, or is a link ({error.strerror})") from None


def _parse_manifest(content: bytes) -> dict[str, str]:
    """Parse a manifest into {path: SHA-256}."""
    digests: dict[str, str] = {}
    try:
        *lines, rest = content.decode().split("\n")
    except UnicodeDecodeError:
        raise _SigningError(f"{MANIFEST_FILE} is no text") from None
    for number, line in enumerate(lines, 1):
        digest, _, path = line.partition("  ")
        if not re.fullmatch("[0-9a-f]{64}", digest) or not path or path in digests:
            raise _SigningError(f"line {number} of {MANIFEST_FILE} is not the SHA-256 and path of one more file")
        digests[path] = digest
    if rest:
        raise _SigningError(f"the last line of {MANIFEST_FILE} has no end")
    return digests


def _differences(signed: Mapping[str, str], digests: Mapping[str, str], planned: Collection[str]) -> dict[str, list[str]]:
    kinds = {
        "changed since": [path for path in signed if path in digests and digests[path] != signed[path]],
        "missing or damaged": [path for path in signed if path not in digests and path in planned],
        "not of this plan": [path for path in signed if path not in digests and path not in planned],
        "added since": [path for path in digests if path not in signed],
    }
    return {kind: paths for kind, paths in kinds.items() if paths}


def _sign_bytes(content: bytes, key: Path) -> bytes:
    with PrivateFolder() as temporary:
        file = temporary.path / MANIFEST_FILE
        file.write_bytes(content)
        _ssh_keygen("sign", "-f", str(key), "-n", _NAMESPACE, str(file))
        return (temporary.path / SIGNATURE_FILE).read_bytes()


def _signing_key(content: bytes, signature: Path) -> str:
    output = _ssh_keygen("check-novalidate", "-n", _NAMESPACE, "-s", str(signature), content=content)
    if (match := _GOOD_SIGNATURE.search(output)) is None:
        raise _SigningError(f"ssh-keygen gave an unknown answer: {_shortened(output)}")
    return match[1]


def _find_signer(content: bytes, signature: Path, signers: Path) -> str:
    try:
        principals = _ssh_keygen("find-principals", "-f", str(signers), "-s", str(signature))
    except _SigningError as error:
        raise _SigningError(f"{signers} does not name its key ({error})") from None
    signer = re.split(r"[,\n]", principals)[0]
    try:
        _ssh_keygen("verify", "-f", str(signers), "-I", signer, "-n", _NAMESPACE, "-s", str(signature), content=content)
    except _SigningError as error:
        raise _SigningError(f"{signers} does not let its key sign results ({error})") from None
    return signer


def _ssh_keygen(action: str, *words: str, content: bytes = b"") -> str:
    """Run `ssh-keygen -Y` and return its output. It has no terminal, so it fails if it needs a passphrase."""
    try:
        completed = subprocess.run(
            ["ssh-keygen", "-Y", action, *words],
            input=content,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            start_new_session=True,
            env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
        )
    except FileNotFoundError:
        raise _SigningError("there is no program ssh-keygen, which is part of OpenSSH") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _SigningError(_shortened(str(error))) from None
    if completed.returncode:
        raise _SigningError(f"ssh-keygen: {_shortened((completed.stderr or completed.stdout).decode(errors='replace'))}")
    return completed.stdout.decode(errors="replace")


def _shortened(text: str) -> str:
    return wording.shortened(wording.one_line(text).rstrip("."), _LONGEST_ANSWER)
