"""What is kept on disk: files and folders that appear at once, records, splits, parallel reading."""
