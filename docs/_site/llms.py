"""llms.txt, in the form of https://llmstxt.org: pages of the menu, a sentence each."""

import re

from mkdocs.structure.files import File

LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
PARAGRAPH = re.compile(r"^(?:\*\*)?[A-Z`\[].*(?:\n\S.*)*", re.MULTILINE)
SENTENCE = re.compile(r".+?(?<!et al)[.!?:](?= |$)")


def first_sentence(markdown: str) -> str:
    """The first sentence below the heading of a page; empty if it has no text."""
    body = markdown.partition("# ")[2].partition("\n")[2]
    text = PARAGRAPH.search(re.sub(r"^```.*?^```", "", body, flags=re.S | re.M))
    words = " ".join(LINK.sub(r"\1", text[0]).replace("**", "").split()) if text else ""
    sentence = SENTENCE.match(words)
    return sentence[0].replace(":", ".") if sentence else words


def on_env(env, config, files):
    """Adds the file, once the pages are read."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}."]
    for section in config.nav:
        ((title, uris),) = section.items()
        if isinstance(uris, str):
            continue  # the repository
        lines += ["", f"## {title}", ""]
        for uri in uris:
            page = files.get_file_from_path(uri).page
            about = first_sentence(page.markdown)
            link = f"- [{page.title}]({page.canonical_url or page.url or './'})"
            lines.append(f"{link}: {about}" if about else link)
    content = "\n".join(lines) + "\n"
    files.append(File.generated(config, "llms.txt", content=content))
    return env
