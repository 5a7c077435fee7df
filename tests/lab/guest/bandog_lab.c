// SPDX-License-Identifier: MIT
/* Prints each line written to /proc/bandog-lab to the kernel's log, facility 0, as a driver would. */
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>

static ssize_t lab_write(struct file *file, const char __user *from, size_t count, loff_t *at)
{
	char *text = memdup_user_nul(from, count), *rest = text, *line;

	if (IS_ERR(text))
		return PTR_ERR(text);
	while ((line = strsep(&rest, "\n")))
		if (*line)
			printk(KERN_ERR "%s\n", line);
	kfree(text);
	return count;
}

static const struct proc_ops lab_ops = { .proc_write = lab_write };

static int __init lab_init(void)
{
	return proc_create("bandog-lab", 0200, NULL, &lab_ops) ? 0 : -ENOMEM;
}

static void __exit lab_exit(void)
{
	remove_proc_entry("bandog-lab", NULL);
}

module_init(lab_init);
module_exit(lab_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Kernel log lines for the lab of bandog");
