"""The search: pages of the navigation, with those for users first.

What mkdocs.yml has in `not_in_nav` is left out.
"""

BOOSTS = {
    "getting_started.md": 4,
    "choose.md": 2,
    "algorithms/muon.md": 4,
    "reference/fm.md": 4,
    "concepts/": 2,
    "privacy.md": 2,
    "tutorial/": 4,
    "how_to/": 2,
    "data.md": 2,
    "devices.md": 2,
    "index.md": 4,
    "faq.md": 2,
    "algorithms/": 2,
    "notebooks/": 0.5,
    "changelog.md": 0.2,
    "contributing.md": 0.2,
    "design.md": 0.5,
    "security.md": 0.2,
}


def boost_of(uri: str) -> float:
    """How much a page weighs in the order of the results."""
    return next((b for begin, b in BOOSTS.items() if uri.startswith(begin)), 1)


def on_page_markdown(markdown, page, config, files):
    """Sets what the search plugin reads."""
    hidden = page.file.inclusion.is_not_in_nav()
    page.meta["search"] = {"exclude": hidden, "boost": boost_of(page.file.src_uri)}
