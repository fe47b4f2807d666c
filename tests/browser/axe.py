"""Gets axe-core, which finds what keeps people with disabilities from using a page, from npm's registry."""

import json
from typing import Any

from browser.devtools import Page
from npm import file_of

VERSION = "4.14.1"
DIGEST = (
    "1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b73"
    "4f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5"
)
FOUND = """axe.run(document, {resultTypes: ["violations"]}).then((result) => JSON.stringify(result.violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => [one.id, one.nodes.map((node) => [node.target.join(" "), node.failureSummary])])))"""


def axe_source() -> str:
    """Return the script. Skips the test if npm or its registry is missing."""
    return file_of("axe-core", VERSION, DIGEST, "axe.min.js")


def serious_findings(page: Page, source: str) -> Any:
    """Return what axe-core finds on the page that is serious or critical."""
    page.value(f"{source}; 0")
    return json.loads(page.value(FOUND))
