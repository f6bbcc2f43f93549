/* runtime/options.h: the flags of a training binary. */
#ifndef SHARDC_RUNTIME_OPTIONS_H
#define SHARDC_RUNTIME_OPTIONS_H

#include "base/checkpoint.h"
#include "base/communicators.h"

typedef VEC(const char *) TextList;
typedef enum Schedule { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE } Schedule;
typedef enum OnNan { ON_NAN_STOP, ON_NAN_SKIP } OnNan;

typedef const char *OptionTEXT;
typedef TextList OptionLIST;
typedef int64_t OptionCOUNT, OptionSEED;      /* >= 0 */
typedef double OptionPOSITIVE, OptionFRACTION; /* >= 0; in [0,1) */
typedef Schedule OptionSCHEDULE;
typedef OnNan OptionON_NAN;
typedef CheckpointKind OptionSAVE_KIND;
typedef bool OptionFLAG;
typedef struct { int64_t first, last; } OptionRANGE;
typedef struct { double beta1, beta2; } OptionBETAS;
typedef struct { const char *in, *out; } OptionPAIR;

typedef enum OptionId {
#define OPT(field, ...) OPT_##field,
#include "runtime/options.def"
	OPT_COUNT
} OptionId;

typedef struct RtOptions {
#define OPT(field, kind, ...) Option##kind field;
#include "runtime/options.def"
	const char *text[OPT_COUNT]; /* the text as given, or as the checkpoint has it (of a list the last); NULL =
	                              * neither */
	bool given[OPT_COUNT];       /* on the command line */
	Arena *arena;
	const char *program;         /* "train": what messages begin with */
} RtOptions;

/* False after a message: the usage is wrong. */
bool options_parse(RtOptions *o, Arena *a, int argc, char **argv, Diag *d);
/* Sets one option as if it had been given; a message begins with `where`. */
bool options_set(RtOptions *o, OptionId id, const char *text, const char *where, Diag *d);
/* Prints the flags by groups. note[OPT_COUNT]: the text in brackets after a flag's help, NULL = none. */
void options_print_help(const RtOptions *o, const char *const *note, FILE *out);

typedef struct OptionInfo { const char *flag, *argument, *help; bool saved; } OptionInfo;
extern const OptionInfo option_info[OPT_COUNT];

#endif
