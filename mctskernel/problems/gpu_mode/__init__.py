"""Problems of GPU MODE."""
