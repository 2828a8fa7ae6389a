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

from docutils import nodes  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

project = "RL-Teacher"
author = "the authors of RL-Teacher"
release = importlib.metadata.version("rl-teacher")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
napoleon_use_ivar = True  # autodoc already documents dataclass fields
html_theme = "furo"
html_title = "RL-Teacher"
html_static_path = ["static"]
html_css_files = ["own.css"]
html_search_scorer = str(HERE / "search_scorer.js")
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"  # not diagrams and output
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
    from docs.reference_pages import generated_pages  # noqa: PLC0415 - torch and others take seconds

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
PICTURE = re.compile(r'<img [^>]*src="([^"]*_images/[^"]+)"[^>]*>')
SETTING = re.compile(r"(?:--)?([a-z_][\w.]+|[A-Z][A-Z_]+)")
TABLES = {
    "generated/settings": "option",
    "crowd": "Setting",
    "monitoring": "variable",
    "wrapper": "argument",
}
"""Pages with tables of settings, and the first word of these tables."""


def finish_body(_: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Link pictures to their full size, and keep options such as ``--option`` on one line in code blocks."""
    if "body" in context:
        kind = "sheet" if page == "pages" else "picture"
        body = BLOCK.sub(_with_whole_words, context["body"])
        context["body"] = PICTURE.sub(rf'<a class="{kind}" href="\1">\g<0></a>', body)


def index_settings(app: Sphinx, doctree: nodes.document) -> None:
    """Make each setting in a table a search result that links to its row."""
    standard, page = app.env.domains.standard_domain, app.env.current_document.docname
    for table in doctree.findall(nodes.table):
        head, *rows = table.findall(nodes.row)
        if head[0].astext() != TABLES.get(page):
            continue
        for row in rows:
            for word in row[0].findall(nodes.literal):
                found = SETTING.fullmatch(word.astext())
                if found and ("confval", found[1]) not in standard.objects:
                    anchor = nodes.make_id(f"setting-{found[1]}")
                    row[0]["ids"].append(anchor)
                    standard.note_object("confval", found[1], anchor)


def _with_whole_words(block: re.Match[str]) -> str:
    return block[1] + HYPHENATED.sub(r'<span class="pre">\g<0></span>', block[2])


def add_hooks(app: Sphinx) -> None:
    """Register the hooks that change pages."""
    app.connect("doctree-read", index_settings)
    app.connect("html-page-context", finish_body)


def setup(app: Sphinx) -> None:
    """Register this file's hooks with Sphinx."""
    app.connect("builder-inited", write_generated_pages)
    add_hooks(app)
