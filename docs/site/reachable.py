"""What the theme leaves out for those who read by keyboard or by ear."""

from typing import Any


def make_reachable(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Let the keyboard scroll wide blocks and tables, and give the headings of the navigation a level."""
    wide = {"<pre>": '<pre tabindex="0">', '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper'}
    for before, after in wide.items():
        if "body" in context:
            context["body"] = context["body"].replace(before, after)
    tree = "furo_navigation_tree"
    context[tree] = context.get(tree, "").replace('role="heading"', 'role="heading" aria-level="2"')
