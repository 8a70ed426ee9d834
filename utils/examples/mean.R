#!/usr/bin/Rscript
# One rank of the job "mean" in R: the average of four numbers over all ranks.   mean.R MOUNT RANK WORLD
args <- commandArgs(trailingOnly = TRUE)
rank <- as.numeric(args[2])
job <- file.path(args[1], "jobs/mean")
mine <- file.path(job, "ranks", rank)

put <- function(path, what, mode = "r+b") {        # one write, when the file is closed
    file <- file(path, mode)
    writeBin(what, file, size = if (is.numeric(what)) 4)
    close(file)
}

dir.create(job, showWarnings = FALSE)              # another rank may have been first
put(file.path(job, "config"), charToRaw(sprintf("world=%s\n", args[3])))
dir.create(mine, showWarnings = FALSE)             # join
put(file.path(mine, "buffer"), rank + 0:3)
allreduce <- file(file.path(mine, "allreduce"), "r+b", raw = TRUE)   # read-write promises to take part
writeBin(charToRaw("op=avg count=4"), allreduce)
close(allreduce)                                   # R writes now, and is back when all ranks have written,
last <- tail(readLines(file.path(mine, "status")), 1)                # but says nothing when it failed
if (!grepl("result=ok", last)) stop(last)
cat(sprintf("rank %d:", rank), readBin(file.path(mine, "buffer"), "numeric", 4, size = 4), fill = TRUE)
