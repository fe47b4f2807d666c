"""Runs the programs on the page about many services with the interpreters that are installed."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxies.programs import served

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/many-services.md"
BLOCKS = re.findall(r"^```(bash|javascript|go)\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
SETTINGS = """
limits = "100/minute"
[[rules]]
name = "login"
path = "/login"
methods = ["POST"]
limits = "5/minute"
"""
PRINTED = {  # the expected output of each program, in the order of the page
    "bash": [r'\{"allowed":true,"limit":5,"remaining":4,.*"rule":"login","status":200,.*\}', r'(\{"settled":1\}){2}'],
    "javascript": [r'200 "login";r=4;t=\d+ ?\n'],
    "go": [r"true 18\n"],
}
PACKAGES = {"bash": "bash", "curl": "curl", "node": "nodejs", "go": "golang-go"}
PROGRAMS = {
    "bash": ("bash", ["{file}"], "program.sh"),
    "javascript": ("node", ["{file}"], "program.mjs"),
    "go": ("go", ["run", "{file}"], "program.go"),
}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served(tmp_path_factory.mktemp("service"), SETTINGS) as (found, _):
        yield found


def test_page_has_a_program_in_each_language() -> None:
    assert [language for language, _ in BLOCKS] == ["bash", "javascript", "go", "bash"]


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=lambda number: f"{BLOCKS[number][0]}-{number}")
def test_program_prints_the_expected_output(number: int, port: int, tmp_path: Path) -> None:
    language, text = BLOCKS[number]
    program, arguments, name = PROGRAMS[language]
    for needed in (program, *(["curl"] if language == "bash" else [])):
        if shutil.which(needed) is None:
            pytest.skip(f"no {needed}; type: sudo apt-get install {PACKAGES[needed]}")
    file = tmp_path / name
    file.write_text(text.replace("127.0.0.1:8900", f"127.0.0.1:{port}"), "utf-8")
    command = [program, *(argument.format(file=file) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    position = [language for language, _ in BLOCKS[:number]].count(language)
    assert re.fullmatch(PRINTED[language][position], done.stdout), done.stdout
