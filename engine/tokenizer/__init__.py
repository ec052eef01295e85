"""Text to token ids and back, from what a GGUF file says; chat templates. No torch here."""

from engine.tokenizer.stream import StreamDecoder
from engine.tokenizer.template import ChatTemplate
from engine.tokenizer.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "StreamDecoder", "Tokenizer"]
