"""The offline pages: views in JavaScript, their style, and the function that puts a page together."""

from traincast.pages.assemble import page_text

__all__ = ["page_text"]
