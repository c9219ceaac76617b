# ruff: noqa: A005  (named after the package it tests)
