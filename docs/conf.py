"""Sphinx configuration; ``make docs`` builds the documentation."""

import gc
import importlib.metadata
import os
import re
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("MPLBACKEND", "agg")
gc.set_threshold(100_000, 50, 100)  # garbage collection took a fifth of the build time
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from sphinx.application import Sphinx  # noqa: E402

from docs.reference_pages import generated_pages  # noqa: E402

project = "RL-Teacher"
author = "the authors of RL-Teacher"
release = importlib.metadata.version("rl-teacher")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
napoleon_use_ivar = True  # autodoc already documents dataclass fields
html_theme = "furo"
html_title = "RL-Teacher"
html_static_path = ["static"]
html_css_files = ["own.css"]
html_copy_source = html_show_sourcelink = html_show_copyright = False
highlight_language = "none"
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
add_module_names = False
maximum_signature_line_length = 88


def write_generated_pages(_: Sphinx) -> None:
    """Write the generated pages whose text changed, so that Sphinx doesn't rebuild the others."""
    folder = HERE / "generated"
    folder.mkdir(exist_ok=True)
    for name, text in generated_pages().items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


BLOCK = re.compile(
    r'(<div class="highlight-none[^>]*><div class="highlight"><pre>)(.*?)(?=</pre>)', re.DOTALL
)
HYPHENATED = re.compile(r"(?<=[\s>])[^\s<>]*-[^\s<>]*")


def keep_options_whole(_: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Prevent line breaks at the hyphens of options such as ``--option`` in code blocks."""
    if "body" in context:
        context["body"] = BLOCK.sub(_with_whole_words, context["body"])


def _with_whole_words(block: re.Match[str]) -> str:
    return block[1] + HYPHENATED.sub(r'<span class="pre">\g<0></span>', block[2])


def setup(app: Sphinx) -> None:
    """Register this file's hooks with Sphinx."""
    app.connect("builder-inited", write_generated_pages)
    app.connect("html-page-context", keep_options_whole)
