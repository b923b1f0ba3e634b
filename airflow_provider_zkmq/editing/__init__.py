"""Editing: tasks as a TextQueue file that people can read and edit, and back."""

from .exporting import export_queue
from .file_format import BadFile, Origin, Refused, queue_named_in
from .importing import Applied, Imported, import_file

__all__ = ["Applied", "BadFile", "Imported", "Origin", "Refused", "export_queue", "import_file", "queue_named_in"]
