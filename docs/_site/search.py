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
    "tutorial/": 2,
    "how_to/": 2,
    "data.md": 2,
    "devices.md": 2,
    "faq.md": 2,
    "algorithms/": 2,
    "notebooks/": 0.5,
    "changelog.md": 0.2,
    "contributing.md": 0.2,
    "design.md": 0.5,
    "security.md": 0.2,
}

SYNONYMS = {  # what people search for, and pages call otherwise
    "concepts/privacy.md": "differential privacy DP DP-SGD user-level",
    "concepts/randomness.md": "seed determinism reproducible checkpoint resume "
    "preemption SLURM save load reliability",
    "concepts/round.md": "client sampling aggregation federated averaging",
    "data.md": "non-iid heterogeneity label skew Dirichlet LEAF split",
    "devices.md": "GPU TPU CUDA multi-GPU memory sharding Windows macOS",
    "faq.md": "macOS Windows install pip error",
    "getting_started.md": "install macOS Windows Docker Colab pip conda",
    "how_to/asynchronous.md": "stragglers FedBuff FedAsync client availability",
    "how_to/clients.md": "personalized personalization FedProx epochs",
    "index.md": "cite citation BibTeX license",
}


def boost_of(uri: str) -> float:
    """How much a page weighs in the order of the results."""
    return next((b for begin, b in BOOSTS.items() if uri.startswith(begin)), 1)


def on_page_markdown(markdown, page, config, files):
    """Sets what the search plugin reads, also words that are not shown."""
    hidden = page.file.inclusion.is_not_in_nav()
    page.meta["search"] = {"exclude": hidden, "boost": boost_of(page.file.src_uri)}
    words = SYNONYMS.get(page.file.src_uri)
    return f"{markdown}\n\n<p hidden>{words}</p>\n" if words else markdown
