"""Signed results, with the real ssh-keygen: what a signature shows, and that no change of a folder passes it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.artifacts import results
from common.spec import SpecError
from compare.core.errors import FolderError
from compare.core.interrupt import Interrupted
from compare.execution import executor, signing, store
from compare.execution.signing import MANIFEST_FILE, SIGNATURE_FILE
from tests.support import comparisons
from tests.support.command_line import convtwins

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="signatures need ssh-keygen, which is not here")

QUICK = ("--frameworks", "left,right", "--cores", "2", "--no-proof", "--modes", "serial")
NOT_CONFIRMED = "SIGNATURE NOT CONFIRMED"

opened: list[str] | None = None
"""Paths that this process opens, while it is a list."""


def watch(event: str, words: tuple[Any, ...]) -> None:
    if opened is not None and event == "open":
        opened.append(str(words[0]))


sys.addaudithook(watch)


def new_key(folder: Path, name: str, passphrase: str = "") -> Path:
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", name, "-f", str(folder / name)]
    subprocess.run(made, check=True)
    return folder / name


def fingerprint(key: Path) -> str:
    said = subprocess.run(["ssh-keygen", "-l", "-f", str(key)], check=True, capture_output=True, text=True).stdout
    return f"ED25519 key {said.split()[1]}"


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
    words = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", namespace, str(folder / MANIFEST_FILE)]
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path, keys: tuple[Path, Path]) -> Path:
    """A comparison of 4 rows in 2 repeats that alice has signed."""
    made_there = comparisons.stored_in(comparisons.repeated(2), tmp_path / "results")
    sign(made_there, keys[0])
    return made_there


def judged(folder: Path, signers: Path | None = None) -> signing.Signature:
    found = store.read(folder, signers).signature
    assert found is not None
    return found


def result_file(folder: Path, repeat: int = 1) -> Path:
    return store.run_folder(folder, "pytorch-serial-2", repeat) / results.RESULT_FILE


def make_faster(folder: Path) -> None:
    """A result with other values, and the checksum that belongs to them."""
    file = result_file(folder)
    results.save(comparisons.paced(results.load(file), 0.25), file.parent)
    assert not store.read(folder).set_aside


def test_a_signed_folder_says_by_whom_in_every_form(folder: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    said = f"Signed by {fingerprint(keys[0])}: 8 results are as they were signed."
    done = convtwins("report", folder)
    assert (done.exit_code, " ".join(done.stdout.split()).count(said)) == (0, 1)
    assert said in (folder / "report.md").read_text() and said in (folder / "report.html").read_text()
    found = json.loads((folder / "results.json").read_text())["signature"]
    assert found["confirmed"] and found["key"] == fingerprint(keys[0]) and found["signer"] is None
    signers = allowed(tmp_path / "signers", "alice@example.org,al@example.org", keys[0])
    named = convtwins("report", folder, "--signers", signers)
    assert named.exit_code == 0 and f"Signed by alice@example.org ({fingerprint(keys[0])}): 8 results" in named.stdout


def test_the_manifest_is_that_of_sha256sum_and_of_the_report(folder: Path) -> None:
    lines = (folder / MANIFEST_FILE).read_text().splitlines()
    paths = [line.split("  ")[1] for line in lines]
    assert paths == sorted(paths) and len(paths) == 9 and paths[0] == store.PLAN_FILE
    assert all(line.split("  ")[0] == hashlib.sha256((folder / line.split("  ")[1]).read_bytes()).hexdigest() for line in lines)
    assert convtwins("report", folder).exit_code == 0
    digest = hashlib.sha256((folder / MANIFEST_FILE).read_bytes()).hexdigest()
    assert f"made from: 9 files, SHA-256 {digest}" in (folder / "report.md").read_text()


def test_without_a_signature_the_environment_says_so_and_the_terminal_nothing(tmp_path: Path) -> None:
    folder = comparisons.stored_in(comparisons.repeated(1), tmp_path / "results")
    done = convtwins("report", folder)
    said = "The checksums protect against accidents only"
    assert done.exit_code == 0 and "accidents" not in done.stdout and "igned by" not in done.stdout
    assert said in (folder / "report.md").read_text() and said in (folder / "report.html").read_text()
    assert json.loads((folder / "results.json").read_text())["signature"] is None


def remove(folder: Path) -> None:
    result_file(folder).unlink()


def tear(folder: Path) -> None:
    result_file(folder).write_text("{")


def change_the_plan(folder: Path) -> None:
    store.write_plan(folder, store.read_plan(folder).model_copy(update={"data_name": "another"}))


def shorten_the_plan(folder: Path) -> None:
    store.write_plan(folder, store.read_plan(folder).model_copy(update={"repeats": 1}))


def replace_the_manifest(folder: Path) -> None:
    """The manifest of the changed files, with the signature of before."""
    make_faster(folder)
    (folder / MANIFEST_FILE).write_text(signing.manifest(store.read(folder).made_from))


def tear_the_signature(folder: Path) -> None:
    file = folder / SIGNATURE_FILE
    file.write_bytes(file.read_bytes()[:100])


CHANGES: dict[Callable[[Path], object], str] = {
    make_faster: "changed since: runs/pytorch-serial-2-r1/result.json.",
    change_the_plan: "changed since: compare.json.",
    shorten_the_plan: "changed since: compare.json; not of this plan: runs/pytorch-data_parallel-2-r1/result.json, ",
    remove: "missing or damaged: runs/pytorch-serial-2-r1/result.json.",
    tear: "missing or damaged: runs/pytorch-serial-2-r1/result.json.",
    replace_the_manifest: "ssh-keygen: ",
    tear_the_signature: "ssh-keygen: ",
    lambda folder: (folder / SIGNATURE_FILE).unlink(): "signed.txt.sig is missing.",
    lambda folder: (folder / MANIFEST_FILE).unlink(): "signed.txt is missing.",
    lambda folder: (folder / SIGNATURE_FILE).write_bytes(b"x" * 2**17): "signed.txt.sig has more than 65,536 bytes.",
}


@pytest.mark.parametrize(("change", "said"), CHANGES.items())
def test_a_folder_that_was_changed_since_fails_and_says_where(
    change: Callable[[Path], object], said: str, folder: Path
) -> None:
    change(folder)
    found = judged(folder)
    assert not found.confirmed and found.sentence.startswith(NOT_CONFIRMED) and said in found.sentence
    done = convtwins("report", folder, "--json")
    printed = json.loads(done.stdout)
    assert done.exit_code == printed["exit_code"] == 1 and printed["findings"]["troubles"][0] == found.sentence
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
    done = convtwins("report", folder, "--signers", signers)
    assert done.exit_code == 1 and f"{NOT_CONFIRMED} of {fingerprint(mallory)}: " in " ".join(done.stdout.split())
    assert "does not name" in done.stdout
    for name in (MANIFEST_FILE, SIGNATURE_FILE):
        (folder / name).unlink()
    none = convtwins("report", folder, "--signers", signers)
    assert none.exit_code == 1 and f"{NOT_CONFIRMED}: the results have none" in none.stdout


def test_a_signature_of_another_purpose_does_not_count(folder: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    signers = allowed(tmp_path / "signers", "alice@example.org", keys[0], 'namespaces="git"')
    assert "does not let its key sign results" in judged(folder, signers).sentence
    sign_manifest(folder, (folder / MANIFEST_FILE).read_bytes(), keys[0], "git")
    assert not judged(folder).confirmed and judged(folder).key is None


def test_a_file_of_signers_that_is_not_there_is_wrong_usage(folder: Path, tmp_path: Path) -> None:
    done = convtwins("report", folder, "--signers", tmp_path / "none")
    assert done.exit_code == 2 and "--signers must name a file" in done.stderr and str(tmp_path / "none") in done.stderr
    with pytest.raises(FolderError, match="--signers must name"):
        store.read(folder, tmp_path)


LINE = "0" * 64
HOSTILE = {
    f"{LINE}  ../outside\n{LINE}  /etc/passwd\n": "not of this plan: ../outside, /etc/passwd; added since: compare.json, ",
    f"{LINE}  runs/../../outside\n": "not of this plan: runs/../../outside",
    f"{LINE}  \x1b[31mred\n": "not of this plan: \\x1b[31mred",
    f"{LINE}  a\n{LINE}  a\n": "line 2 of signed.txt is not",
    "a comparison\n": "line 1 of signed.txt is not",
    f"{LINE}  a": "the last line of signed.txt has no end",
    "": "added since: compare.json, ",
    "".join(f"{LINE}  {number:064}\n" for number in range(80_000)): " and 79997 more",
}


@pytest.mark.parametrize(("content", "said"), HOSTILE.items(), ids=range(len(HOSTILE)))
def test_a_hostile_manifest_ends_in_a_sentence_and_opens_no_file(
    content: str, said: str, folder: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "outside").write_text("secret")
    sign_manifest(folder, content.encode(), keys[1])
    monkeypatch.setattr(sys.modules[__name__], "opened", [])
    found = judged(folder)
    assert opened and not [path for path in opened if path.endswith(("outside", "passwd"))]
    assert not found.confirmed and said in found.sentence and len(found.sentence) < 600


def test_a_manifest_that_is_no_text_or_no_plain_file_is_not_read(folder: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    file = folder / MANIFEST_FILE
    elsewhere = tmp_path / "elsewhere"
    shutil.copy(file, elsewhere)
    file.unlink()
    file.symlink_to(elsewhere)
    assert "signed.txt cannot be read, or is a link" in judged(folder).sentence
    file.unlink()
    os.mkfifo(file)
    assert "signed.txt is no plain file" in judged(folder).sentence
    file.unlink()
    file.mkdir()
    assert "signed.txt is no plain file" in judged(folder).sentence
    file.rmdir()
    with file.open("wb") as large:
        large.truncate(2**25 + 1)
    assert "signed.txt has more than 32 MiB" in judged(folder).sentence
    sign_manifest(folder, b"\xff\n", keys[0])
    assert "signed.txt is no text" in judged(folder).sentence


def test_two_folders_side_by_side_fail_if_one_was_changed(folder: Path, tmp_path: Path) -> None:
    other = comparisons.stored_in(comparisons.repeated(2), tmp_path / "other")
    assert convtwins("report", folder, other).exit_code == 0
    make_faster(folder)
    done = convtwins("report", other, folder)
    assert done.exit_code == 1 and "the signature of B does not hold" in done.stdout
    assert f"B: {NOT_CONFIRMED}" in convtwins("report", other, folder, "--full").stdout


def test_a_key_that_cannot_sign_is_refused_before_anything_runs(
    tmp_path: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    locked = new_key(tmp_path, "locked", "a passphrase")
    for key, why in ((locked, "passphrase"), (tmp_path / "none", "No such file"), (tmp_path, "")):
        done = convtwins("run", *QUICK, "--out", out, "--sign", key)
        assert done.exit_code == 2 and why in done.stderr and not out.exists()
        assert f"--sign must name an SSH key that can sign. Received: {key} (ssh-keygen: " in done.stderr
    monkeypatch.setenv("PATH", str(tmp_path))
    done = convtwins("run", *QUICK, "--out", out, "--sign", keys[0])
    assert done.exit_code == 2 and "there is no program ssh-keygen" in done.stderr and not out.exists()


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
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        yield
        process.terminate()


@pytest.mark.usefixtures("agent")
def test_a_public_key_signs_if_an_agent_holds_its_private_half(tmp_path: Path, folder: Path) -> None:
    key = new_key(tmp_path, "held")
    subprocess.run(["ssh-add", "-q", str(key)], check=True)
    key.unlink()
    public = key.with_suffix(".pub")
    signing.check_key(public)
    sign(folder, public)
    assert judged(folder).key == fingerprint(public)
    subprocess.run(["ssh-add", "-q", "-D"], check=True)
    with pytest.raises(SpecError, match="--sign must name"):
        signing.check_key(public)


def test_run_signs_what_it_has_made_and_signs_anew_when_it_goes_on(
    fake_twins: pytest.MonkeyPatch, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    out, (key, _) = tmp_path / "out", keys
    done = convtwins("run", *QUICK, "--out", out, "--sign", key)
    assert done.exit_code == 0, done.output
    assert f"Signed by {fingerprint(key)}: 4 results are as they were signed." in " ".join(done.stdout.split())
    assert str(key) not in (out / "report.md").read_text()
    unsigned = convtwins("run", "--resume", out, "--repeats", "2")
    assert unsigned.exit_code == 1 and f"{NOT_CONFIRMED} of {fingerprint(key)}: " in unsigned.stdout
    assert {*judged(out).differences} == {"changed since", "added since"}
    again = convtwins("run", "--resume", out, "--sign", key)
    assert again.exit_code == 0 and "8 results are as they were signed." in again.stdout


def test_what_ctrl_c_leaves_is_signed(fake_twins: pytest.MonkeyPatch, keys: tuple[Path, Path], tmp_path: Path) -> None:
    execute, begun = executor.execute, list[object]()

    def interrupted(*words: Any, **named: Any) -> Any:
        begun.append(words)
        if len(begun) == 3:
            raise Interrupted(2)
        return execute(*words, **named)

    fake_twins.setattr(executor, "execute", interrupted)
    done = convtwins("run", *QUICK, "--out", tmp_path / "out", "--sign", keys[0])
    assert done.exit_code == 130 and "2 results are as they were signed." in " ".join(done.stdout.split())


@pytest.mark.parametrize("more", [(), ("--batch-size", "32,64")], ids=["comparison", "matrix"])
def test_a_key_that_is_gone_when_the_runs_have_ended_fails_the_command(
    more: tuple[str, ...], fake_twins: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key, execute = new_key(tmp_path, "gone"), executor.execute

    def removing(*words: Any, **named: Any) -> Any:
        key.unlink(missing_ok=True)
        return execute(*words, **named)

    fake_twins.setattr(executor, "execute", removing)
    done = convtwins("run", *QUICK, *more, "--out", tmp_path / "out", "--sign", key)
    assert done.exit_code == 1 and f"The results are not signed with {key} (ssh-keygen: " in done.stderr
    assert (tmp_path / "out" / "report.md").exists()


def test_each_comparison_of_a_matrix_is_signed(fake_twins: pytest.MonkeyPatch, keys: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = convtwins("run", *QUICK, "--batch-size", "32,64", "--out", out, "--sign", keys[0])
    assert done.exit_code == 0, done.output
    cells = [path.parent for path in sorted(out.glob(f"*/{MANIFEST_FILE}"))]
    assert len(cells) == 2 and all(judged(cell).confirmed for cell in cells)
    signed = f"Signed by {fingerprint(keys[0])}: 4 results are as they were signed."
    assert (out / "report.md").read_text().count(signed) == 2
    signers = allowed(tmp_path / "signers", "alice@example.org", keys[0])
    assert convtwins("report", out, "--signers", signers).exit_code == 0
    (cells[1] / SIGNATURE_FILE).unlink()
    broken = convtwins("report", out, "--full")
    assert broken.exit_code == 1 and f"{cells[1].name}: {NOT_CONFIRMED}: signed.txt.sig is missing." in broken.stdout
