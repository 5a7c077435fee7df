"""Where records come from: /dev/kmsg, the journal, text files, the clock."""
