"""Quarantine: records that could not be read or applied, in the source's schema `headwater`.

A record waits under its key, for one view in one store, and later changes of that key wait behind
it. It has all that is needed to try it again. The rows are written before the batch counts as
done, so a record is in its store, has something newer there, or waits: it is never just gone.

| state | |
|---|---|
| `waiting` | until somebody says `retry` or `drop`; what lacks a value, until the row arrives |
| `retry` | the job tries it as soon as it sees it |
| `dropped` | given up by somebody; stays so if the record comes again, and its content is erased |
| `superseded` | it could not be read, and a later change of the key has taken its place |
"""
