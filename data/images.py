"""Image files: resolve their paths, find out whether training can read them, and identify their content."""

import hashlib
import os
import stat
import urllib.parse
import warnings
from collections import OrderedDict
from dataclasses import dataclass, field

from PIL import Image

from data.rejects import Problem, Rejected

CHECKS = ("none", "open", "decode")
# Formats of photographs and scans. Leaving the others out also keeps Pillow from starting outside programs (EPS).
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "JPEG2000")
# Pillow raises in training above twice its own limit.
PILLOW_LIMIT = 2 * 89_478_485
_CLIPPED_MODES = ("I", "F")
_ORIENTATION = 0x0112
_CACHED_IMAGES = 4096


@dataclass(frozen=True)
class ImageInfo:
    """What is known of one image file.

    `identity` (16 bytes) is equal for equal files (for equal paths when the file was not read). `width` and `height`
    are pixels as stored, 0 when the file was not opened.
    """

    identity: bytes
    width: int = 0
    height: int = 0
    warnings: tuple[Problem, ...] = field(default=())


def resolve_path(name: str, folder: str) -> str:
    """Absolute path of an image that a record names, relative to `folder`. `file://` URLs are paths.

    Raises:
        Rejected: the name is empty, no path, a remote URL or embedded data.
    """
    if name.startswith("file://"):
        name = urllib.parse.unquote(name.removeprefix("file://"))
    scheme = name.split(":", 1)[0] if "://" in name or name.startswith("data:") else ""
    if scheme:
        raise Rejected("image_remote", "", f"{name[:80]!r} is no file; save the image and give its path")
    if not name.strip() or "\0" in name:
        raise Rejected("image_path", "", f"{name[:80]!r} cannot be a path")
    return os.path.normpath(os.path.join(folder, name))


class ImageInspector:
    """Inspects image files, each file once while it stays among the latest few thousand.

    Args:
        check: `none` touches no file, `open` reads the header and the bytes, `decode` also decodes the pixels.
        max_pixels: largest accepted area.
        by_path: identify images by their path, which spares reading whole files under `open`.
    """

    def __init__(self, check: str, max_pixels: int, by_path: bool = False):
        Image.init()  # Pillow loads most formats on demand, but not for an explicit list of them
        self._check = check
        self._max_pixels = max_pixels
        self._by_path = by_path or check == "none"
        self._known: OrderedDict[str, ImageInfo | Rejected] = OrderedDict()

    def inspect(self, path: str) -> ImageInfo:
        """Raises `Rejected` when training could not use the file."""
        known = self._known.get(path)
        if known is None:
            try:
                known = self._inspect(path)
            except Rejected as rejected:
                known = rejected
            self._known[path] = known
            if len(self._known) > _CACHED_IMAGES:
                self._known.popitem(last=False)
        if isinstance(known, Rejected):
            raise Rejected(known.problem.kind, known.problem.field, known.problem.reason)
        return known

    def _inspect(self, path: str) -> ImageInfo:
        if self._check == "none":
            return ImageInfo(_digest_text(os.path.realpath(path)))
        _check_file(path)
        identity = _digest_text(os.path.realpath(path)) if self._by_path else _digest_file(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow's remarks on metadata; its size warning is an error here
                with Image.open(path, formats=FORMATS) as image:
                    return self._look_at(image, path, identity)
        except Image.DecompressionBombError as error:
            raise Rejected("image_too_many_pixels", "", f"{path}: {error}") from error
        except Image.UnidentifiedImageError as error:
            reason = f"{path}: not an image of a supported format ({', '.join(FORMATS)})"
            raise Rejected("image_unreadable", "", reason) from error
        except Rejected:
            raise
        except Exception as error:  # Pillow's decoders raise whatever the damage makes them raise
            reason = f"{path}: {type(error).__name__}: {error}; replace the file"
            raise Rejected("image_undecodable", "", reason) from error

    def _look_at(self, image: Image.Image, path: str, identity: bytes) -> ImageInfo:
        width, height = image.size
        if width * height > self._max_pixels:
            reason = f"{path}: {width}x{height} is over {self._max_pixels} pixels (--max-image-pixels); scale it down"
            raise Rejected("image_too_many_pixels", "", reason)
        if image.mode.startswith(_CLIPPED_MODES):
            reason = f"{path}: mode {image.mode} is clipped to white when read as RGB; store it with 8 bits a channel"
            raise Rejected("image_mode", "", reason)
        found = []
        if getattr(image, "n_frames", 1) > 1:
            found.append(Problem("image_frames", "", f"{path}: {image.n_frames} frames"))
        if self._check == "decode":
            if image.format == "JPEG":
                # A reduced size still reads the whole stream, so damage shows, at a fraction of the cost.
                image.draft("RGB", (max(1, width // 8), max(1, height // 8)))
            image.load()
            if _transparent(image):
                found.append(Problem("image_transparency", "", f"{path}: flatten it on a white background"))
        # Asking a PNG without EXIF in its header for it decodes the file.
        if self._check == "decode" or image.format != "PNG" or "exif" in image.info:
            orientation = image.getexif().get(_ORIENTATION, 1)
            if orientation not in (0, 1):
                reason = f"{path}: EXIF orientation {orientation}; store the pixels upright"
                found.append(Problem("image_orientation", "", reason))
        return ImageInfo(identity, width, height, tuple(found))


def _transparent(image: Image.Image) -> bool:
    if image.mode in ("RGBA", "LA", "PA"):
        return image.getchannel("A").getextrema()[0] < 255
    return "transparency" in image.info


def _check_file(path: str) -> None:
    try:
        status = os.stat(path)
    except FileNotFoundError as error:
        raise Rejected("image_not_found", "", f"{path}: no such file (see --image-root)") from error
    except NotADirectoryError as error:
        raise Rejected("image_not_found", "", f"{path}: no such file (a part of the path is a file)") from error
    except OSError as error:
        kind = "image_denied" if isinstance(error, PermissionError) else "image_not_found"
        raise Rejected(kind, "", f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise Rejected("image_not_file", "", f"{path}: not a regular file")
    if status.st_size == 0:
        raise Rejected("image_empty", "", f"{path}: empty file")


def _digest_text(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16, person=b"path").digest()


def _digest_file(path: str) -> bytes:
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=16)).digest()
    except OSError as error:
        raise Rejected("image_denied", "", f"{path}: cannot be read ({error.strerror})") from error
