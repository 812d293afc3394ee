"""Small charts written as SVG by hand: a few kilobytes each, real text, the page's own colours."""
