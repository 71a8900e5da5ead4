"""The four tables that `pgbench -i` makes; pgbench_history has no primary key."""

from headwater import source, view

bank = source(
    "bank",
    tables=[
        "public.pgbench_accounts",
        "public.pgbench_branches",
        "public.pgbench_tellers",
        "public.pgbench_history",
    ],
    insert_only=["public.pgbench_history"],
)

accounts = view.mirror("accounts", bank.pgbench_accounts, keys=["aid"])
branches = view.mirror("branches", bank.pgbench_branches, keys=["bid"])
tellers = view.mirror("tellers", bank.pgbench_tellers, keys=["tid"])
history = view.mirror("history", bank.pgbench_history)
