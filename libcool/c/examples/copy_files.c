/* Copies a file or directory to all nodes of the cluster and prints the result as JSON: copy_files SOURCE DEST. */

#include <cool.h>
#include <stdio.h>

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: copy_files SOURCE DEST\n");
        return 1;
    }
    const char *arguments[] = {"copy", "--json", "--", argv[1], argv[2], NULL};
    char *outcome = NULL;
    cool_status status = cool_files(arguments, &outcome);
    if (outcome != NULL)
        fputs(outcome, stdout);
    cool_free_text(outcome);
    if (status != COOL_OK)
        fprintf(stderr, "%s\n", cool_error_message());
    return status != COOL_OK;
}
