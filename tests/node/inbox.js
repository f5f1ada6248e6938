// What came, until somebody asks for it; and who asked, until something comes.
'use strict';

class Inbox {
  constructor(patience) {
    this.patience = patience;
    this.items = [];
    this.waiting = [];
  }

  put(item) {
    const taker = this.waiting.shift();
    if (taker) taker(item);
    else this.items.push(item);
  }

  // The next item. Rejects when none comes within `patience` ms.
  take() {
    if (this.items.length) return Promise.resolve(this.items.shift());
    return new Promise((resolve, reject) => {
      const taker = (item) => {
        clearTimeout(timer);
        resolve(item);
      };
      const timer = setTimeout(() => {
        this.waiting = this.waiting.filter((other) => other !== taker);
        reject(new Error('nothing came'));
      }, this.patience);
      this.waiting.push(taker);
    });
  }
}

module.exports = { Inbox };
