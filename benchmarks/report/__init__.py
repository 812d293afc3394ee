"""From finished runs to one JSON a protocol, tables, figures and a page."""
