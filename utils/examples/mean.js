#!/usr/bin/node
// One rank of the job "mean" in Node.js: the average of four numbers over all ranks.   mean.js MOUNT RANK WORLD
const fs = require('fs');
const [mount, rank, world] = process.argv.slice(2);
const job = `${mount}/jobs/mean`, mine = `${job}/ranks/${rank}`;

function make(path) {
    try { fs.mkdirSync(path); } catch (error) { if (error.code !== 'EEXIST') throw error; }
}

make(job);                                          // another rank may have been first
fs.writeFileSync(`${job}/config`, `world=${world}\n`, { flag: 'r+' });
make(mine);                                         // join
const grad = Float32Array.from([0, 1, 2, 3], (x) => x + Number(rank));
fs.writeFileSync(`${mine}/buffer`, grad);
const allreduce = fs.openSync(`${mine}/allreduce`, 'r+');   // read-write promises to take part

fs.write(allreduce, 'op=avg count=4', (error) => {  // in a thread of Node's own: the event loop goes on meanwhile
    if (error) throw error;
    const bytes = fs.readFileSync(`${mine}/buffer`);
    console.log(`rank ${rank}:`, ...new Float32Array(bytes.buffer, bytes.byteOffset, 4));
});
