"""No docstring, comment or document gains a word that hides who acts."""

import pytest

from tests.style.words import ROOT, Finding, counts, findings_in, known


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.py", "x = 1  # nobody reads it\n", [Finding(1, "nobody")]),
        ("a.py", 'def f():\n    """Give the size."""\n', [Finding(2, "Give")]),
        ("a.py", 'def f():\n    """Return it.\n\n    Whoever asks."""\n', [Finding(4, "Whoever")]),
        ("a.py", 'X = 1\n"""The same, in bytes."""\n', [Finding(2, "The same")]),
        ("a.py", 'name = "whoever"\n', []),
        ("a.py", 'def f():\n    """Return what the caller gave."""\n', []),
        ("a.rs", "/// Whatever is left.\nfn f() {}\n", [Finding(1, "Whatever")]),
        ("a.rs", 'let x = "anyone";\n', []),
        ("a.md", "```sh\necho nobody\n```\nFor anyone.\n", [Finding(4, "anyone")]),
    ],
)
def test_banned_words_are_found_in_prose_alone(
    path: str, text: str, expected: list[Finding]
) -> None:
    assert findings_in(path, text) == expected


def test_files_have_no_more_banned_words_than_known() -> None:
    accepted = known()
    added = [
        f"{path}:{finding.line}: {finding.word}"
        for path, number in counts().items()
        if number > accepted.get(path, 0)
        for finding in findings_in(path, (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not added, "name the actor (CONTRIBUTING.md):\n" + "\n".join(added)


def test_known_words_are_still_there() -> None:
    now = counts()
    gone = [path for path, number in known().items() if number > now.get(path, 0)]
    assert not gone, f"lower the counts with `python -m tests.style.words`: {gone}"
