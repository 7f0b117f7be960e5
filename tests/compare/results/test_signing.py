"""Signed results, with the real ssh-keygen: what a signature shows, and that no change of a folder passes it."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import results
from common.spec import SpecError
from compare.cli.errors import FolderError
from compare.results import signing, store
from compare.results.signing import MANIFEST_FILE, SIGNATURE_FILE
from tests.compare.conftest import behave
from tests.support import comparisons, processes
from tests.support.command_line import convtwins, convtwins_json
from tests.support.refusals import check_ended, refused

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="signatures need ssh-keygen, which is not here")

QUICK = ("run", "--frameworks", "left,right", "--cores", "2", "--no-proof", "--modes", "serial")
NOT_CONFIRMED = "SIGNATURE NOT CONFIRMED"

opened: list[str] | None = None
"""Paths that this process opens, while it is a list."""


def watch(event: str, words: tuple[Any, ...]) -> None:
    if opened is not None and event == "open":
        opened.append(str(words[0]))


sys.addaudithook(watch)


def new_key(folder: Path, name: str, passphrase: str = "") -> Path:
    made = ("-q", "-t", "ed25519", "-N", passphrase, "-C", name, "-f", folder / name)
    processes.run(["ssh-keygen", *made]).succeeded()
    return folder / name


def fingerprint(key: Path) -> str:
    return f"ED25519 key {processes.run(['ssh-keygen', '-l', '-f', key]).succeeded().stdout.split()[1]}"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("keys")
    return new_key(folder, "alice"), new_key(folder, "mallory")


def allowed(path: Path, name: str, key: Path, options: str = "") -> Path:
    path.write_text(f"{name} {options} {key.with_suffix('.pub').read_text()}")
    return path


def sign(folder: Path, key: Path) -> None:
    assert signing.sign(folder, store.read(folder).made_from, key) is None


def sign_manifest(folder: Path, content: bytes, key: Path, namespace: str = "convtwins") -> None:
    """As whoever has a key can sign anything."""
    (folder / MANIFEST_FILE).write_bytes(content)
    (folder / SIGNATURE_FILE).unlink(missing_ok=True)
    processes.run(["ssh-keygen", "-Y", "sign", "-f", key, "-n", namespace, folder / MANIFEST_FILE]).succeeded()


@pytest.fixture
def folder(tmp_path: Path, keys: tuple[Path, Path]) -> Path:
    """A comparison of 4 rows in 2 repeats that alice has signed."""
    folder = comparisons.stored_in(comparisons.repeated(2), tmp_path / "results")
    sign(folder, keys[0])
    return folder


def judged(folder: Path, signers: Path | None = None) -> signing.Signature:
    signature = store.read(folder, signers).signature
    assert signature is not None
    return signature


def result_file(folder: Path, repeat: int = 1) -> Path:
    return store.run_folder(folder, "pytorch-serial-2", repeat) / results.RESULT_FILE


def make_faster(folder: Path) -> None:
    """A result with other values, and the checksum that belongs to them."""
    file = result_file(folder)
    results.save(comparisons.paced(results.load(file), 0.25), file.parent)
    assert not store.read(folder).set_aside


def test_a_signed_folder_says_by_whom_in_every_form(folder: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    sentence = judged(folder).sentence
    done = convtwins("report", folder).succeeded()
    assert " ".join(done.stdout.split()).count(sentence) == 1 and "8 results" in sentence and fingerprint(keys[0]) in sentence
    assert sentence in (folder / "report.md").read_text() and sentence in (folder / "report.html").read_text()
    signature = json.loads((folder / "results.json").read_text())["signature"]
    assert signature["confirmed"] and signature["key"] == fingerprint(keys[0]) and signature["signer"] is None
    signers = allowed(tmp_path / "signers", "alice@example.org,al@example.org", keys[0])
    named = convtwins_json("report", folder, "--signers", signers)["signature"]
    assert named["signer"] == "alice@example.org" and f"alice@example.org ({fingerprint(keys[0])})" in named["sentence"]


def test_the_manifest_is_that_of_sha256sum_and_of_the_report(folder: Path) -> None:
    lines = (folder / MANIFEST_FILE).read_text().splitlines()
    paths = [line.split("  ")[1] for line in lines]
    assert paths == sorted(paths) and len(paths) == 9 and paths[0] == store.PLAN_FILE
    assert all(line.split("  ")[0] == hashlib.sha256((folder / line.split("  ")[1]).read_bytes()).hexdigest() for line in lines)
    convtwins("report", folder).succeeded()
    digest = hashlib.sha256((folder / MANIFEST_FILE).read_bytes()).hexdigest()
    assert f"made from: 9 files, SHA-256 {digest}" in (folder / "report.md").read_text()


def test_without_a_signature_the_environment_says_so_and_the_terminal_nothing(tmp_path: Path) -> None:
    folder = comparisons.stored_in(comparisons.repeated(1), tmp_path / "results")
    done = convtwins("report", folder).succeeded()
    assert "accidents" not in done.stdout and "igned by" not in done.stdout
    assert all("accidents only" in (folder / name).read_text() for name in ("report.md", "report.html"))
    assert json.loads((folder / "results.json").read_text())["signature"] is None


def remove(folder: Path) -> None:
    result_file(folder).unlink()


def tear(folder: Path) -> None:
    result_file(folder).write_text("{")


def change_the_plan(folder: Path) -> None:
    store.write_plan(folder, comparisons.with_fields(store.read_plan(folder), data_name="another"))


def shorten_the_plan(folder: Path) -> None:
    store.write_plan(folder, comparisons.with_fields(store.read_plan(folder), settings__repeats=1))


def replace_the_manifest(folder: Path) -> None:
    """The manifest of the changed files, with the signature of before."""
    make_faster(folder)
    (folder / MANIFEST_FILE).write_text(signing.manifest(store.read(folder).made_from))


def tear_the_signature(folder: Path) -> None:
    file = folder / SIGNATURE_FILE
    file.write_bytes(file.read_bytes()[:100])


LAST = "runs/pytorch-serial-2-r1/result.json"
ROWS = ("pytorch-data_parallel-2", "pytorch-serial-2", "tensorflow-data_parallel-2", "tensorflow-serial-2")
CHANGES: dict[Callable[[Path], object], dict[str, list[str]] | str] = {
    make_faster: {"changed since": [LAST]},
    change_the_plan: {"changed since": ["compare.json"]},
    shorten_the_plan: {"changed since": ["compare.json"], "not of this plan": [f"runs/{row}-r1/result.json" for row in ROWS]},
    remove: {"missing or damaged": [LAST]},
    tear: {"missing or damaged": [LAST]},
    replace_the_manifest: "ssh-keygen",
    tear_the_signature: "ssh-keygen",
    lambda folder: (folder / SIGNATURE_FILE).unlink(): "signed.txt.sig is missing",
    lambda folder: (folder / MANIFEST_FILE).unlink(): "signed.txt is missing",
    lambda folder: (folder / SIGNATURE_FILE).write_bytes(b"x" * 2**17): "65,536 bytes",
}


@pytest.mark.parametrize(("change", "fault"), CHANGES.items())
def test_a_folder_that_was_changed_since_fails_and_says_where(
    change: Callable[[Path], object], fault: dict[str, list[str]] | str, folder: Path
) -> None:
    change(folder)
    signature = judged(folder)
    assert not signature.confirmed and signature.sentence.startswith(NOT_CONFIRMED)
    if isinstance(fault, str):
        assert fault in signature.sentence and not signature.differences
    else:
        assert signature.differences == fault
        assert all(f"{kind}: {paths[0]}" in signature.sentence for kind, paths in fault.items())
    printed = convtwins_json("report", folder, exit_code=1)
    assert printed["exit_code"] == 1 and printed["findings"]["troubles"][0] == signature.sentence
    assert not printed["signature"]["confirmed"]


def test_a_result_that_was_added_since_is_named(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    folder = comparisons.stored_in(comparisons.repeated(2), tmp_path / "results")
    content = result_file(folder).read_bytes()
    result_file(folder).unlink()
    sign(folder, keys[0])
    assert judged(folder).confirmed
    result_file(folder).write_bytes(content)
    assert judged(folder).differences == {"added since": ["runs/pytorch-serial-2-r1/result.json"]}


def test_who_changes_a_folder_and_signs_it_anew_is_not_the_signer(
    folder: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    alice, mallory = keys
    make_faster(folder)
    sign(folder, mallory)
    assert judged(folder).confirmed and judged(folder).key == fingerprint(mallory) != fingerprint(alice)
    signers = allowed(tmp_path / "signers", "alice@example.org", alice)
    refuted = convtwins_json("report", folder, "--signers", signers, exit_code=1)["signature"]
    assert not refuted["confirmed"] and (refuted["key"], refuted["signer"]) == (fingerprint(mallory), None)
    assert str(signers) in refuted["sentence"]
    for name in (MANIFEST_FILE, SIGNATURE_FILE):
        (folder / name).unlink()
    none = convtwins_json("report", folder, "--signers", signers, exit_code=1)["signature"]
    assert not none["confirmed"] and none["key"] is None


def test_a_signature_of_another_purpose_does_not_count(folder: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    signers = allowed(tmp_path / "signers", "alice@example.org", keys[0], 'namespaces="git"')
    other = judged(folder, signers)
    assert not other.confirmed and other.key == fingerprint(keys[0]) and other.signer is None
    sign_manifest(folder, (folder / MANIFEST_FILE).read_bytes(), keys[0], "git")
    assert not judged(folder).confirmed and judged(folder).key is None


def test_a_file_of_signers_that_is_not_there_is_wrong_usage(folder: Path, tmp_path: Path) -> None:
    check_ended(convtwins("report", folder, "--signers", tmp_path / "none"), field="--signers", received=tmp_path / "none")
    with refused(FolderError, field="--signers", received=tmp_path):
        store.read(folder, tmp_path)


LINE = "0" * 64
HOSTILE = {
    f"{LINE}  ../outside\n{LINE}  /etc/passwd\n": "not of this plan: ../outside, /etc/passwd; added since: compare.json, ",
    f"{LINE}  runs/../../outside\n": "not of this plan: runs/../../outside",
    f"{LINE}  \x1b[31mred\n": "not of this plan: \\x1b[31mred",
    f"{LINE}  a\n{LINE}  a\n": "line 2 of signed.txt",
    "a comparison\n": "line 1 of signed.txt",
    f"{LINE}  a": "last line of signed.txt",
    "": "added since: compare.json, ",
    "".join(f"{LINE}  {number:064}\n" for number in range(80_000)): " and 79997 more",
}


@pytest.mark.parametrize(("content", "words"), HOSTILE.items(), ids=range(len(HOSTILE)))
def test_a_hostile_manifest_ends_in_a_sentence_and_opens_no_file(
    content: str, words: str, folder: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "outside").write_text("secret")
    sign_manifest(folder, content.encode(), keys[1])
    monkeypatch.setattr(sys.modules[__name__], "opened", [])
    signature = judged(folder)
    assert opened and not [path for path in opened if path.endswith(("outside", "passwd"))]
    assert not signature.confirmed and words in signature.sentence and len(signature.sentence) < 600


def test_a_manifest_that_is_no_text_or_no_plain_file_is_not_read(folder: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    file = folder / MANIFEST_FILE

    def check_unread(fault: str) -> None:
        signature = judged(folder)
        assert not signature.confirmed and signature.key is None and "signed.txt" in signature.sentence
        assert fault in signature.sentence

    shutil.move(file, tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    check_unread("link")
    file.unlink()
    os.mkfifo(file)
    check_unread("no plain file")
    file.unlink()
    file.mkdir()
    check_unread("no plain file")
    file.rmdir()
    with file.open("wb") as large:
        large.truncate(2**25 + 1)
    check_unread("32 MiB")
    sign_manifest(folder, b"\xff\n", keys[0])
    assert "no text" in judged(folder).sentence


def test_two_folders_side_by_side_fail_if_one_was_changed(folder: Path, tmp_path: Path) -> None:
    other = comparisons.stored_in(comparisons.repeated(2), tmp_path / "other")
    convtwins("report", folder, other).succeeded()
    make_faster(folder)
    done = convtwins("report", other, folder)
    assert done.exit_code == 1 and "the signature of B does not hold" in " ".join(done.stdout.split())
    assert f"B: {NOT_CONFIRMED}" in convtwins("report", other, folder, "--full").stdout


def test_a_key_that_cannot_sign_is_refused_before_anything_runs(
    tmp_path: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    locked = new_key(tmp_path, "locked", "a passphrase")
    for key, why in ((locked, "passphrase"), (tmp_path / "none", "No such file"), (tmp_path, "ssh-keygen")):
        done = convtwins(*QUICK, "--out", out, "--sign", key)
        check_ended(done, field="--sign", received=key, fix="ssh-add", names=["ssh-keygen", why])
    monkeypatch.setenv("PATH", str(tmp_path))
    check_ended(convtwins(*QUICK, "--out", out, "--sign", keys[0]), received=keys[0], names=["no program ssh-keygen"])
    assert not out.exists()


def test_where_ssh_keygen_is_missing_nothing_is_confirmed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert judged(folder).sentence.startswith(f"{NOT_CONFIRMED}: there is no program ssh-keygen")


@pytest.fixture
def agent(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An agent without keys, for the processes of this one."""
    if shutil.which("ssh-agent") is None or shutil.which("ssh-add") is None:
        pytest.skip("an agent needs ssh-agent and ssh-add, which are not here")
    socket = tmp_path_factory.mktemp("a") / "s"
    with processes.started(["ssh-agent", "-D", "-a", socket]) as process:
        assert process.stdout is not None
        process.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        yield


@pytest.mark.usefixtures("agent")
def test_a_public_key_signs_if_an_agent_holds_its_private_half(tmp_path: Path, folder: Path) -> None:
    key = new_key(tmp_path, "held")
    processes.run(["ssh-add", "-q", key]).succeeded()
    key.unlink()
    public = key.with_suffix(".pub")
    signing.check_key(public)
    sign(folder, public)
    assert judged(folder).key == fingerprint(public)
    processes.run(["ssh-add", "-q", "-D"]).succeeded()
    with refused(SpecError, field="--sign", received=public):
        signing.check_key(public)


def test_run_signs_what_it_has_made_and_signs_anew_when_it_goes_on(
    fake_twins: pytest.MonkeyPatch, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    out, (key, _) = tmp_path / "out", keys
    convtwins(*QUICK, "--out", out, "--sign", key).succeeded()
    assert judged(out).confirmed and "4 results" in judged(out).sentence and judged(out).key == fingerprint(key)
    assert str(key) not in (out / "report.md").read_text()
    unsigned = convtwins_json("run", "--resume", out, "--repeats", "2", exit_code=1)["signature"]
    assert not unsigned["confirmed"] and unsigned["key"] == fingerprint(key)
    assert unsigned["differences"].keys() == {"changed since", "added since"}
    again = convtwins_json("run", "--resume", out, "--sign", key)["signature"]
    assert again["confirmed"] and "8 results" in again["sentence"]


def test_what_ctrl_c_leaves_is_signed(fake_twins: pytest.MonkeyPatch, keys: tuple[Path, Path], tmp_path: Path) -> None:
    behave(fake_twins, left__serial__2="ctrl-c")
    done = convtwins(*QUICK, "--out", tmp_path / "out", "--sign", keys[0])
    assert done.exit_code == 130 and judged(tmp_path / "out").confirmed
    statuses = {row: [run.status for run in runs.values()] for row, runs in store.read(tmp_path / "out").runs.items()}
    there = {"left-serial-1core": ["ok"], "right-serial-1core": ["ok"], "left-serial-2cores": ["killed"]}
    assert statuses == {**there, "right-serial-2cores": []}


@pytest.mark.parametrize("more", [(), ("--batch-size", "32,64")], ids=["comparison", "matrix"])
def test_a_key_that_is_gone_when_the_runs_have_ended_fails_the_command(
    more: tuple[str, ...], fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = new_key(tmp_path, "gone")
    behave(fake_twins, left__serial__1=f"remove {key}")
    done = convtwins(*QUICK, *more, "--out", tmp_path / "out", "--sign", key)
    assert done.exit_code == 1 and f"not signed with {key} (ssh-keygen: " in done.stderr
    assert (tmp_path / "out" / "report.md").exists()


def test_each_comparison_of_a_matrix_is_signed(fake_twins: pytest.MonkeyPatch, keys: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    convtwins(*QUICK, "--batch-size", "32,64", "--out", out, "--sign", keys[0]).succeeded()
    cells = [path.parent for path in sorted(out.glob(f"*/{MANIFEST_FILE}"))]
    assert len(cells) == 2 and all(judged(cell).confirmed and "4 results" in judged(cell).sentence for cell in cells)
    assert (out / "report.md").read_text().count(judged(cells[0]).sentence) == 2
    convtwins("report", out, "--signers", allowed(tmp_path / "signers", "alice@example.org", keys[0])).succeeded()
    (cells[1] / SIGNATURE_FILE).unlink()
    broken = convtwins("report", out, "--full")
    assert broken.exit_code == 1 and f"{cells[1].name}: {NOT_CONFIRMED}: " in broken.stdout
