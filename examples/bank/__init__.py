"""A bank on the event store alone: one Postgres, an HTTP API, and two background runners.

`domain` has events, commands and rules, `payments` the process of a payment with its timer,
`balances` the table that readers query, `app` what these run on, and `server` the processes:

    BANK_DSN=… BANK_DIRECT_DSN=… BANK_KEYS=keys.json python -m examples.bank.server 8080
"""
