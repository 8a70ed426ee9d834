#!/usr/bin/perl
# One rank of the job "mean" in Perl: the average of four numbers over all ranks.   mean.pl MOUNT RANK WORLD
use strict;
use warnings;
use Fcntl;

my ($mount, $rank, $world) = @ARGV;
my $job = "$mount/jobs/mean";
mkdir $job;                                  # another rank may have been first
put("$job/config", "world=$world\n");
mkdir "$job/ranks/$rank";                    # join

sysopen(my $allreduce, "$job/ranks/$rank/allreduce", O_RDWR) or die "$!\n";   # read-write promises to take part
put("$job/ranks/$rank/buffer", pack "f*", map { $rank + $_ } 0 .. 3);
syswrite($allreduce, "op=avg count=4") or die "allreduce: $!\n";              # returns when all ranks have written

open(my $buffer, "<:raw", "$job/ranks/$rank/buffer") or die "$!\n";
sysread($buffer, my $bytes, 16);
print "rank $rank: @{[unpack 'f*', $bytes]}\n";

sub put {                                    # one write
    sysopen(my $file, $_[0], O_WRONLY) or die "$_[0]: $!\n";
    syswrite($file, $_[1]) or die "$_[0]: $!\n";
}
