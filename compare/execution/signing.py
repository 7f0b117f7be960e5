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
from compare.core import wording
from compare.core.errors import FolderError

MANIFEST_FILE = "signed.txt"
SIGNATURE_FILE = f"{MANIFEST_FILE}.sig"

_NAMESPACE = "convtwins"
"""A signature of another purpose, such as git's, does not count."""
_MOST_BYTES = {MANIFEST_FILE: 2**25, SIGNATURE_FILE: 2**16}
_SECONDS = 60.0
"""For one answer of ssh-keygen. A key in hardware waits for a touch."""
_LONGEST_ANSWER = 240
_GOOD = re.compile(r'Good "convtwins" signature with (\S+ key SHA256:[A-Za-z0-9+/]+)')


class Signature(Exact):
    """The signature of a results folder, as it was found."""

    confirmed: bool
    """Whether `key` signed the plan and exactly the results that are there, and a signer that was asked for has this key."""
    sentence: str
    key: str | None = None
    """Its kind and fingerprint. None: there is no signature, or the manifest has another."""
    signer: str | None = None
    """Its owner, by the file of `report --signers`."""
    differences: dict[str, list[str]] = {}
    """What has happened: the files that it has happened to."""


class _Refused(ValueError):
    """ssh-keygen did not do it, or the files are none that it could judge."""


def check(key: Path | None) -> None:
    """Sign a text with a key, to see that it can. None: nothing is to be signed.

    Raises:
        SpecError: it cannot.
    """
    if key is None:
        return
    try:
        _signed(b"Can this key sign?\n", key)
    except _Refused as error:
        raise SpecError(
            f"--sign must name an SSH key that can sign. Received: {key} ({error}). Name a private key without a passphrase, "
            "or hand the key to an agent with ssh-add."
        ) from None


def manifest(digests: Mapping[str, str]) -> str:
    """The lines that sha256sum prints of these files, in the order of their paths."""
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items()))


def sign(folder: Path, digests: Mapping[str, str], key: Path, again: str | None = None) -> str | None:
    """Write the manifest of a folder and its signature, in place of those of before.

    Args:
        digests: SHA-256 of the plan and each result, by its path in the folder.
        again: the command that signs them with `--sign KEY`. None: that of a comparison.

    Returns:
        Why that failed, or None.
    """
    content = manifest(digests).encode()
    try:
        signature = _signed(content, key)
        atomic_files.write_atomically(folder / MANIFEST_FILE, content)
        atomic_files.write_atomically(folder / SIGNATURE_FILE, signature)
    except (_Refused, OSError) as error:
        again = again or wording.command("run", "--resume", str(folder))
        return f"The results are not signed with {key} ({error}). Sign them with {again} --sign {key}."
    return None


def sha256(path: Path) -> str:
    """SHA-256 of a record.

    Raises:
        OSError: it cannot be read, is no plain file, or is too large for a record.
    """
    return hashlib.sha256(plain_file.read(path, records.MOST_BYTES)).hexdigest()


def digests(folder: Path, paths: Collection[str]) -> dict[str, str]:
    """SHA-256 of those of these files of a folder that are there, by their paths in it."""
    return {path: sha256(folder / path) for path in paths if (folder / path).is_file()}


def of_records(folder: Path, paths: Collection[str], key: Path | None, again: str) -> tuple[Signature | None, str | None]:
    """Sign a command's records, if there is a key, and judge the signature that the folder has then.

    Args:
        paths: of the records in the folder, whether or not they are there.
        again: see `sign`.

    Returns:
        (the signature, if there is one; why signing failed, if it did).
    """
    read = digests(folder, paths)
    unsigned = None if key is None else sign(folder, read, key, again)
    return judge(folder, read, paths, None), unsigned


def judge(folder: Path, read: Mapping[str, str], planned: Collection[str], signers: Path | None) -> Signature | None:
    """Compare a folder with its signature.

    Args:
        read: SHA-256 of the plan and of each result that counts, by its path in the folder.
        planned: paths of the plan and of all its results, whether or not they are there.
        signers: a file in the form of ssh's allowed_signers. The signature must be of a key in it.

    Returns:
        None: it has no signature, and `signers` asks for none.

    Raises:
        FolderError: `signers` cannot be read.
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
            content, signature = (_content(folder / name) for name in _MOST_BYTES)
            there = temporary.path / SIGNATURE_FILE
            there.write_bytes(signature)
            key = _key_of(content, there)
            signer = _signer(content, there, signers) if signers is not None else None
        differences = _differences(_parsed(content), read, planned)
    except _Refused as error:
        return _unconfirmed(str(error), key, signer)
    if differences:
        said = "; ".join(f"{what}: {wording.listed(map(wording.visible, paths))}" for what, paths in differences.items())
        return _unconfirmed(f"it was made over other files. {said}", key, signer, differences)
    results = len(read) - 1
    are = "1 result is" if results == 1 else f"{results:,} results are"
    sentence = f"Signed by {_owner(key, signer)}: {are} as {'it was' if results == 1 else 'they were'} signed."
    return Signature(confirmed=True, sentence=sentence, key=key, signer=signer)


def _unconfirmed(
    why: str, key: str | None = None, signer: str | None = None, differences: Mapping[str, list[str]] | None = None
) -> Signature:
    of = f" of {_owner(key, signer)}" if key else ""
    sentence = f"SIGNATURE NOT CONFIRMED{of}: {why}."
    return Signature(confirmed=False, sentence=sentence, key=key, signer=signer, differences=dict(differences or {}))


def _owner(key: str, signer: str | None) -> str:
    return f"{wording.visible(signer)} ({key})" if signer else key


def _content(path: Path) -> bytes:
    """A file of the signature. A link or a device is not opened."""
    try:
        return plain_file.read(path, _MOST_BYTES[path.name], follow=False)
    except FileNotFoundError:
        raise _Refused(f"{path.name} is missing") from None
    except PlainFileError as error:
        raise _Refused(f"{path.name} {error.fault}") from None
    except OSError as error:
        raise _Refused(f"{path.name} cannot be read, or is a link ({error.strerror})") from None


def _parsed(content: bytes) -> dict[str, str]:
    """SHA-256 by path, as a manifest has them."""
    found: dict[str, str] = {}
    try:
        *lines, rest = content.decode().split("\n")
    except UnicodeDecodeError:
        raise _Refused(f"{MANIFEST_FILE} is no text") from None
    for number, line in enumerate(lines, 1):
        digest, _, path = line.partition("  ")
        if not re.fullmatch("[0-9a-f]{64}", digest) or not path or path in found:
            raise _Refused(f"line {number} of {MANIFEST_FILE} is not the SHA-256 and path of one more file")
        found[path] = digest
    if rest:
        raise _Refused(f"the last line of {MANIFEST_FILE} has no end")
    return found


def _differences(signed: Mapping[str, str], read: Mapping[str, str], planned: Collection[str]) -> dict[str, list[str]]:
    kinds = {
        "changed since": [path for path in signed if path in read and read[path] != signed[path]],
        "missing or damaged": [path for path in signed if path not in read and path in planned],
        "not of this plan": [path for path in signed if path not in read and path not in planned],
        "added since": [path for path in read if path not in signed],
    }
    return {what: paths for what, paths in kinds.items() if paths}


def _signed(content: bytes, key: Path) -> bytes:
    with PrivateFolder() as temporary:
        file = temporary.path / MANIFEST_FILE
        file.write_bytes(content)
        _ssh_keygen("sign", "-f", str(key), "-n", _NAMESPACE, str(file))
        return (temporary.path / SIGNATURE_FILE).read_bytes()


def _key_of(content: bytes, signature: Path) -> str:
    said = _ssh_keygen("check-novalidate", "-n", _NAMESPACE, "-s", str(signature), content=content)
    if (good := _GOOD.search(said)) is None:
        raise _Refused(f"ssh-keygen gave an unknown answer: {_short(said)}")
    return good[1]


def _signer(content: bytes, signature: Path, signers: Path) -> str:
    try:
        named = _ssh_keygen("find-principals", "-f", str(signers), "-s", str(signature))
    except _Refused as error:
        raise _Refused(f"{signers} does not name its key ({error})") from None
    signer = re.split(r"[,\n]", named)[0]
    try:
        _ssh_keygen("verify", "-f", str(signers), "-I", signer, "-n", _NAMESPACE, "-s", str(signature), content=content)
    except _Refused as error:
        raise _Refused(f"{signers} does not let its key sign results ({error})") from None
    return signer


def _ssh_keygen(action: str, *words: str, content: bytes = b"") -> str:
    """What `ssh-keygen -Y` prints. It has no terminal, so it cannot ask for a passphrase, and then fails."""
    try:
        done = subprocess.run(
            ["ssh-keygen", "-Y", action, *words],
            input=content,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            start_new_session=True,
            env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
        )
    except FileNotFoundError:
        raise _Refused("there is no program ssh-keygen, which is part of OpenSSH") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Refused(_short(str(error))) from None
    if done.returncode:
        raise _Refused(f"ssh-keygen: {_short((done.stderr or done.stdout).decode(errors='replace'))}")
    return done.stdout.decode(errors="replace")


def _short(text: str) -> str:
    return wording.shortened(wording.one_line(text).rstrip("."), _LONGEST_ANSWER)
