/*
 * `README` of the mount: how to use the tree one has found. It is a part of the project's README.md, taken
 * from there while the daemon is built (fs_readme.sed).
 */
#include "fs/fs_root.h"

const char fs_readme[] =
#include "fs/fs_readme.inc"
    ;
