"""Extreme classification: points of many classes, read, made up, classified and scored."""
