"""Well-known image formats that are not read, so that a refusal can name them and the conversion."""

from __future__ import annotations

from collections.abc import Mapping

_PHOTOS = (
    "heic heif hif avif jxl jp2 j2k jpx jxr "  # newer formats of cameras and of the web
    "3fr arw cr2 cr3 crw dng erf iiq kdc mrw nef nrw orf pef raf raw rw2 rwl sr2 srf srw x3f"  # raw data of sensors
)
_DRAWINGS = "dcm dds emf eps exr fits hdr ico icns pam pcx psb psd qoi svg svgz tga wmf xbm xcf xpm"
_TARGETS: Mapping[str, str] = {
    **{f".{name}": "JPEG" for name in _PHOTOS.split()},
    **{f".{name}": "PNG" for name in _DRAWINGS.split()},
}
_BRANDS = {
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"), "heic"),
    **dict.fromkeys((b"mif1", b"msf1"), "heif"),
    **dict.fromkeys((b"avif", b"avis"), "avif"),
}
_SIGNATURES = {
    b"\0\0\0\x0cJXL ": "jxl",
    b"\xff\x0a": "jxl",
    b"\0\0\0\x0cjP  ": "jp2",
    b"8BPS": "psd",
    b"gimp xcf": "xcf",
}


def by_suffix(suffix: str) -> str | None:
    """Return the advice for a suffix, e.g. `HEIC is not read: convert it to JPEG`. None for a suffix of no such format."""
    target = _TARGETS.get(suffix.lower())
    return f"{suffix[1:].upper()} is not read: convert it to {target}" if target else None


def by_content(content: bytes) -> str | None:
    """Return the advice for a file by its first bytes, whatever its name. None for no such format."""
    name = _BRANDS.get(content[8:12]) if content[4:8] == b"ftyp" else None
    name = name or next((format_name for signature, format_name in _SIGNATURES.items() if content.startswith(signature)), None)
    return by_suffix(f".{name}") if name else None
