"""How is the database asked? One connection for each request."""

import os

import psycopg
from psycopg.rows import namedtuple_row

DATABASE_URL = os.environ["DATABASE_URL"]


class Database:
    """A connection that opens no transaction unasked: CALL must not run inside one."""

    def __init__(self):
        self.connect()

    def connect(self):
        self.connection = psycopg.connect(DATABASE_URL, autocommit=True, row_factory=namedtuple_row)

    def ask(self, sql, *values):
        return self.connection.execute(sql, values).fetchone()

    def ask_again(self, sql, *values):
        """For what may be repeated with the same arguments, on another connection if this one breaks."""
        try:
            return self.ask(sql, *values)
        except psycopg.OperationalError:
            self.connect()
            return self.ask(sql, *values)


def with_database(work, *values):
    """Works with a connection of its own, and closes it."""
    db = Database()
    try:
        return work(db, *values)
    finally:
        db.connection.close()
