"""A plot's SVG as part of a page: without a style of its own, with the page's colours and unique ids."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

_COLOURS = {"#000000": "currentColor", "#ffffff": "var(--card)"}
"""Colours of the page that replace black and white, which follow its light or dark theme. Hatches and texts keep theirs, which
stand on a colour. Black text has no colour in the file, and so follows the theme."""
_LEFT_TO_PAGE = "font-family"
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def svg(source: str, name: str) -> str:
    """An `<svg>` element for a page.

    The page's policy forbids `style` attributes. Each of their properties becomes an attribute, which means the same.
    The marks of `plots.mark` become `data-` attributes, which the page's script reads.

    Args:
        source: an SVG file as matplotlib writes it.
        name: what the picture shows, for readers who do not see it. It is the prefix of every id.
    """
    root = ElementTree.fromstring(source)
    prefix = re.sub(r"\W+", "-", name)
    _strip(root)
    marks = [
        (element, json.loads(element.attrib.pop("id"))) for element in root.iter() if element.get("id", "").startswith("{")
    ]
    hatches = {id(part) for element in root.iter() if element.tag.endswith("pattern") for part in element.iter()}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        colours = {} if id(element) in hatches or element.tag == "text" else _COLOURS
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        if element.tag == "image":  # named after its bytes, so that two equal matrices have one id
            attributes.pop("id", None)
        for declaration in filter(None, attributes.pop("style", "").split(";")):
            key, _, value = declaration.partition(":")
            if key.strip() != _LEFT_TO_PAGE:
                attributes[key.strip()] = value.strip()
        element.attrib.clear()
        element.attrib.update({key: _page_value(key, colours.get(value, value), prefix) for key, value in attributes.items()})
    for element, values in marks:
        element.set("data-series", values["series"])
        points = [part for part in element.iter() if part.tag == "use"] or [element]
        for point, label in zip(points, values["labels"], strict=False):
            point.set("data-label", label)
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    root.attrib |= {"role": "img", "aria-label": name}
    return ElementTree.tostring(root, encoding="unicode")


def _strip(element: ElementTree.Element) -> None:
    """Remove metadata and the style sheet of the file."""
    for child in list(element):
        if child.tag.rpartition("}")[2] in ("metadata", "style"):
            element.remove(child)
        else:
            _strip(child)


def _page_value(key: str, value: str, prefix: str) -> str:
    if key == "id":
        return f"{prefix}-{value}"
    if key == "href" and not value.startswith("data:image/png;base64,"):  # that is a matrix of colours
        return f"#{prefix}-{value.removeprefix('#')}"
    return _REFERENCE.sub(rf"url(#{prefix}-\1)", value)
