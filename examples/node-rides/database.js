// How is the database asked? One connection for each request; CALL must not run inside a transaction.
const { Client } = require("pg");

module.exports = class Database {
  async connect() {
    this.client = new Client({ connectionString: process.env.DATABASE_URL });
    this.client.on("error", () => {}); // whoever asks next is told
    await this.client.connect();
    return this;
  }

  async ask(sql, ...values) {
    return (await this.client.query(sql, values)).rows[0];
  }

  // For what may be repeated with the same arguments, on another connection if this one breaks.
  async askAgain(sql, ...values) {
    return this.ask(sql, ...values).catch(async (error) => {
      if (/^RS/.test(error.code)) throw error;
      return (await this.connect()).ask(sql, ...values);
    });
  }

  // A transaction that works for this attempt: the guard is its first statement.
  async transaction(me, work) {
    try {
      await this.ask("BEGIN");
      await this.ask("SELECT retrysafe.guard($1, $2)", ...me);
      const done = await work();
      await this.ask("COMMIT");
      return done;
    } catch (error) {
      await this.ask("ROLLBACK").catch(() => {});
      throw error;
    }
  }
};
