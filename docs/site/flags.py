"""A flag stays whole: a browser may end a line after any hyphen, and then `--` stands alone."""

import re
from typing import Any

FLAG = re.compile(r"(?<![\w-])(--[A-Za-z][\w.-]*)")
BLOCK = re.compile(r'(<div class="highlight-bash.*?<pre[^>]*>)(.*?)(</pre>)', re.DOTALL)
IN_LINE = re.compile(r'<span class="pre">(--[A-Za-z][\w.-]*)</span>')


def keep_flags_whole(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Mark the flags of commands, for site.css."""
    if "body" in context:
        whole = IN_LINE.sub(r'<span class="pre flag">\1</span>', context["body"])
        context["body"] = BLOCK.sub(lambda block: block[1] + FLAG.sub(marked, block[2]) + block[3], whole)


def marked(flag: re.Match[str]) -> str:
    """Return a flag with its mark."""
    return f'<span class="flag">{flag[1]}</span>'
