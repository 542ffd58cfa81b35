"""Encryption of stored objects: AES-256-GCM in chunks, under a key of each object's own.

Format of an encrypted object: magic, key id, salt, then chunks of 1 MiB (the last one shorter, perhaps empty), each
followed by its 16-byte tag.

* The object's key is HKDF-SHA256 (RFC 5869) of the store's key with the random 32-byte salt. The nonce of a chunk is
  its number and a flag for the last one (the STREAM construction of Hoang, Reyhanitabar, Rogaway and Vizar, 2015): with
  a fresh salt for every object no nonce is used twice under one key, however many objects there are, and chunks can
  neither be reordered nor cut off.
* The associated data of every chunk holds the store's id, the object's name and the key id: an object that is moved to
  another name or store, or relabelled, is refused. What cannot be noticed is an old version of an object put back under
  its own name (also that of an earlier run of the same epoch, which is why ``.old-1`` has no part in the name here);
  the log's step numbers and digests limit what that could do.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from checkmate_common.files.private_files import replace_private
from checkmate_common.files.regular_files import read_bounded
from shadow_rx.store.errors import StoreError, Trouble, damaged

MAGIC = b"CKMTENC1"
KEY_BYTES = 32
KEY_VARIABLE = "CHECKMATE_STORE_KEY"
"""Environment variable that keys are read from where no file is named: 64 hexadecimal digits each, commas between."""
CHUNK_BYTES = 1 << 20
_ID_BYTES, _SALT_BYTES, _TAG_BYTES = 8, 32, 16
_HEADER_BYTES = len(MAGIC) + _ID_BYTES + _SALT_BYTES
_MOVED = re.compile(r"\.old-[0-9]+(?=/)")
_MAX_FILE_BYTES = 1 << 20
_HEX = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class Key:
    """A key of a store; its bytes never appear in messages."""

    secret: bytes
    """32 bytes."""

    @property
    def id(self) -> str:
        """16 hexadecimal digits that name the key and do not tell it."""
        return _derive(self.secret, b"", b"checkmate store key id").hex()[: 2 * _ID_BYTES]

    def __repr__(self) -> str:
        """Show the id only."""
        return f"Key({self.id})"

    @classmethod
    def new(cls) -> Key:
        """Return a random key."""
        return cls(secrets.token_bytes(KEY_BYTES))


@dataclass(frozen=True)
class KeyRing:
    """Keys of a store: the first is for new objects, the others still open older ones."""

    keys: tuple[Key, ...]
    """At least one."""
    source: str = "memory"
    """Where they are from, for messages."""

    @property
    def primary(self) -> Key:
        """Key for new objects."""
        return self.keys[0]

    def find(self, key_id: str) -> Key | None:
        """Return the key with this id."""
        return next((key for key in self.keys if key.id == key_id), None)


def parse_keys(words: Sequence[str], source: str) -> KeyRing:
    """Return the keys that `words` write in hexadecimal digits.

    Raises:
        StoreError: none, or one that is not 64 hexadecimal digits.
    """
    if not words or not all(_HEX.fullmatch(word) for word in words):
        message = "expected keys of 64 hexadecimal digits, one a line; make one with checkmate store create-key"
        raise StoreError(Trouble.KEY, source, "", message)
    return KeyRing(tuple(Key(bytes.fromhex(word)) for word in words), source)


def read_key_file(path: Path) -> KeyRing:
    """Read a key file: one key a line, the first for new objects; ``#`` begins a comment.

    Raises:
        StoreError: it cannot be read, others than its owner can read it, or it holds no key.
    """
    try:
        mode = path.stat().st_mode & 0o777
        text = read_bounded(path, _MAX_FILE_BYTES).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(Trouble.KEY, str(path), "", f"the key file cannot be read: {error}") from error
    if mode & 0o077:
        message = f"the key file is open to others than its owner (mode {mode:04o}); run chmod 600 on it"
        raise StoreError(Trouble.PERMISSIONS, str(path), "", message)
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return parse_keys([line for line in lines if line], str(path))


def write_key_file(path: Path, ring: KeyRing) -> None:
    """Write a key file, for its owner alone; a crash leaves the old one or the new one.

    Raises:
        OSError: it cannot be written.
    """
    lines = (f"{key.secret.hex()}  # key {key.id}\n" for key in ring.keys)
    replace_private(path, "".join(lines).encode())


def change_keys(path: Path, change: Callable[[tuple[Key, ...]], tuple[Key, ...]]) -> tuple[Key, ...]:
    """Let `change` turn the keys of a key file into others; return those that it had, none where it is not there.

    Of several that do this at once each sees what the others have written: a key that gets lost is a store that is.

    Raises:
        StoreError: see `read_key_file`.
        OSError: it cannot be written.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        before = read_key_file(path).keys if path.exists() else ()
        write_key_file(path, KeyRing(change(before), str(path)))
        return before
    finally:
        os.close(folder)


def find_keys(path: Path | None, environment: Mapping[str, str]) -> KeyRing | None:
    """Return the keys of a file, else those of `environment`, else None.

    Raises:
        StoreError: see `read_key_file` and `parse_keys`.
    """
    if path is not None:
        return read_key_file(path)
    text = environment.get(KEY_VARIABLE)
    return None if text is None else parse_keys([word.strip() for word in text.split(",")], f"${KEY_VARIABLE}")


def encrypt(key: Key, store_id: str, name: str, data: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Yield the parts of the encrypted object that holds the bytes of `data`, one part after the other, as `name`."""
    salt = secrets.token_bytes(_SALT_BYTES)
    header = MAGIC + bytes.fromhex(key.id) + salt
    cipher, label = AESGCM(_derive(key.secret, salt, b"checkmate store object")), _label(store_id, name, key.id)
    yield header
    number, waiting = 0, next(chunks := _chunks(data))
    for following in chunks:
        yield cipher.encrypt(_nonce(number, False), waiting, label)
        number, waiting = number + 1, following
    yield cipher.encrypt(_nonce(number, True), waiting, label)


def _chunks(data: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of `data` in pieces of `CHUNK_BYTES`, the last one shorter, and at least one."""
    held, last = bytearray(), None
    for part in data:
        view, start = memoryview(part), 0
        while len(held) + len(view) - start >= CHUNK_BYTES:
            if last is not None:
                yield last
            end = start + CHUNK_BYTES - len(held)
            last = bytes(held) + view[start:end] if held else view[start:end]
            held.clear()
            start = end
        held += view[start:]
    if last is not None:
        yield last
    if held or last is None:
        yield bytes(held)


def sealed_size(size: int) -> int:
    """Return the bytes of the encrypted object that holds `size` bytes."""
    return _HEADER_BYTES + size + max(1, -(-size // CHUNK_BYTES)) * _TAG_BYTES


def key_id_of(data: bytes) -> str | None:
    """Return the id of the key that an object is encrypted with, None when it is not an encrypted one."""
    if len(data) < _HEADER_BYTES or not data.startswith(MAGIC):
        return None
    return data[len(MAGIC) : len(MAGIC) + _ID_BYTES].hex()


def decrypt(ring: KeyRing, store: str, store_id: str, name: str, data: bytes) -> bytes:
    """Return what `encrypt` was given.

    Args:
        ring: the keys.
        store: URL of the store, for messages.
        store_id: its id.
        name: the object's name.
        data: the encrypted object.

    Raises:
        StoreError: no key fits, or the object is not as it was written.
    """
    key_id = key_id_of(data)
    if key_id is None:
        raise damaged(store, name, "is not an encrypted object, or its beginning is torn")
    key = ring.find(key_id)
    if key is None:
        known = ", ".join(key.id for key in ring.keys)
        raise StoreError(
            Trouble.KEY, store, name, f"is encrypted with key {key_id}; the keys of {ring.source} are {known}"
        )
    salt = data[_HEADER_BYTES - _SALT_BYTES : _HEADER_BYTES]
    cipher, label = AESGCM(_derive(key.secret, salt, b"checkmate store object")), _label(store_id, name, key_id)
    view, parts, size = memoryview(data)[_HEADER_BYTES:], [], CHUNK_BYTES + _TAG_BYTES
    chunks = max(1, -(-len(view) // size))
    try:
        for number in range(chunks):
            piece = view[number * size : (number + 1) * size]
            parts.append(cipher.decrypt(_nonce(number, number == chunks - 1), piece, label))
    except InvalidTag:
        message = "fails its authentication: changed, torn, or put here from another name or store"
        raise damaged(store, name, message) from None
    return b"".join(parts)


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


def _label(store_id: str, name: str, key_id: str) -> bytes:
    # Unambiguous, because no part can hold a NUL.
    return "\0".join(("checkmate-store-1", store_id, _MOVED.sub("", name), key_id)).encode()


def _derive(secret: bytes, salt: bytes, purpose: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt, purpose).derive(secret)
