"""Task folders: checked, drafted from files or words, made from search-space caches; and the built-in ones."""
