"""Reads the headers with `ratelimit-header-parser`, a package of npm, in Node.js."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client

from npm import file_of
from ratelimit_mw import MemoryStore, wsgi
from ratelimit_mw.testing import Clock
from web.wsgi_talk import hello

VERSION = "0.1.0"
DIGEST = (
    "fa0834557e21d27053e495997da3cdc0057ca564596b73001472d935460ee72a"
    "b0fb822f53ae0798fb40dda45aa50dae48fd71dd36b84d93b4939d7a76d34b64"
)
READ = """import { parseRateLimit } from "./parser.mjs"
const found = JSON.parse(process.argv[2]).map((headers) => parseRateLimit(headers, { reset: "seconds" }))
console.log(JSON.stringify(found.map((one) => ({ ...one, reset: Math.round((one.reset - new Date()) / 1000) }))))
"""


@pytest.mark.parametrize("style", ["draft-6", "draft-7"])
def test_a_client_reads_the_fields_of_earlier_drafts(style: Any, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    (tmp_path / "parser.mjs").write_text(file_of("ratelimit-header-parser", VERSION, DIGEST, "dist/index.mjs"), "utf-8")
    (tmp_path / "read.mjs").write_text(READ, "utf-8")
    store = MemoryStore(clock=Clock())
    limits = "2/hour using fixed_window; 9/day using fixed_window"
    client = Client(wsgi.RateLimitMiddleware(hello, limits=limits, headers=style, store=store))
    answers = [{name.lower(): value for name, value in client.get("/").headers} for _ in range(3)]
    command = [node, str(tmp_path / "read.mjs"), json.dumps(answers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found = [(one["limit"], one["remaining"], one["used"]) for one in json.loads(done.stdout)]
    assert found == [(2, 1, 1), (2, 0, 2), (2, 0, 2)]
    assert {one["reset"] for one in json.loads(done.stdout)} <= {3599, 3600}  # the parser drops the milliseconds
