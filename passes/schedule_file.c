/* passes/schedule_file.c */
#include "passes/passes.h"
